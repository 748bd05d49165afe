"""The nodes of the incremental engine: their readers, in whatever form they are kept."""

from random import Random

import pytest

from koguma.core.graph import FEW, GraphNode, Memo


def memos(number: int) -> list[Memo]:
    return [Memo({}, each, None) for each in range(number)]


@pytest.mark.parametrize("number", [1, 2, 3, FEW, FEW + 1, 3 * FEW])
def test_readers_stand_in_order_of_arrival_while_others_leave(number):
    node, readers = GraphNode({}, "x"), memos(number)
    for reader in readers:
        node.add_reader(reader)
    for leaving in Random(number).sample(readers, k=number):
        assert list(node.readers) == readers
        node.remove_reader(leaving)
        readers.remove(leaving)
    assert not node.readers


@pytest.mark.parametrize("number", [2, FEW, 3 * FEW])
def test_a_reader_that_is_added_again_stands_last(number):
    node, (first, *others) = GraphNode({}, "x"), memos(number)
    for reader in (first, *others):
        node.add_reader(reader)
    node.remove_reader(first)
    node.add_reader(first)
    assert list(node.readers) == [*others, first]
