"""Each test of the Kubernetes form has a namespace of its own."""

import itertools

import pytest

from tests.kube_client import KUMA, config_maps_in

_numbers = itertools.count(1)


@pytest.fixture
def config_maps(plane):
    return config_maps_in(plane, f"namespace{next(_numbers)}")


@pytest.fixture
def timeouts(config_maps):
    """Timeouts of the test's own namespace, as Kuma's users write them."""
    return config_maps.other(KUMA, "MeshTimeout")
