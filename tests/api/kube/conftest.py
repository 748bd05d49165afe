"""Each test of the Kubernetes form has a namespace of its own."""

import itertools

import pytest

from tests.kube_door import CORE, Door
from tests.kube_room import Room

_numbers = itertools.count(1)


@pytest.fixture
def room(plane):
    return Room(plane, f"room{next(_numbers)}")


@pytest.fixture
def door(room):
    """Timeouts of the test's own namespace, as Kuma's users write them."""
    return Door(room.plane, room.namespace)


@pytest.fixture
def maps(door):
    """ConfigMaps of the same namespace."""
    return door.other(CORE, "ConfigMap")
