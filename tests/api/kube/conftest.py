"""Each test of the Kubernetes form has a namespace of its own."""

import itertools

import pytest

from tests.kube_room import Room

_numbers = itertools.count(1)


@pytest.fixture
def room(plane):
    return Room(plane, f"room{next(_numbers)}")
