"""Bytes that are made once and sent to many: large lists, and lines that watches of an endpoint share."""

from contextlib import ExitStack

import pytest

from koguma.api.kube.media import CHUNK_SIZE
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.kube_client import KOGUMA, KUMA, KubeClient


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("crowded"), skip_default_mesh=True) as plane:
        plane("PUT", "/meshes/crowd", {"type": "Mesh", "name": "crowd", "skipCreatingInitialPolicies": ["*"]})
        many = [timeout(f"t-{number:03}", "crowd") for number in range(2 * CHUNK_SIZE + 1)]
        assert plane("POST", "/_apply", many).status == 200
        yield plane


def path(version, namespace="mesh-crowd"):
    return f"/apis/{version}/namespaces/{namespace}/meshtimeouts"


@pytest.mark.parametrize("limit", [1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE, 0])
def test_a_list_of_any_size_is_whole(crowded, limit):
    answer = crowded("GET", f"{path(KUMA)}?limit={limit}")
    names = [item["metadata"]["name"] for item in answer.json["items"]]
    assert names == [f"t-{number:03}" for number in range(limit or 2 * CHUNK_SIZE + 1)]
    assert int(answer.headers["Content-Length"]) == len(answer.body)


@pytest.mark.parametrize("size", [1, CHUNK_SIZE, CHUNK_SIZE + 1])
def test_pages_meet_without_a_gap_and_say_how_much_is_left(crowded, size):
    names, token, left = [], "", []
    while True:
        shown = crowded("GET", f"{path(KUMA)}?limit={size}&continue={token}").json
        names += [item["metadata"]["name"] for item in shown["items"]]
        left.append(shown["metadata"].get("remainingItemCount", 0))
        token = shown["metadata"].get("continue", "")
        if not token:
            break
    total = 2 * CHUNK_SIZE + 1
    assert names == [f"t-{number:03}" for number in range(total)]
    assert left == [max(0, total - size * (number + 1)) for number in range(len(left))]


def test_a_large_list_can_be_asked_for_its_head_alone(crowded):
    answer, whole = crowded("HEAD", path(KUMA)), crowded("GET", path(KUMA))
    assert answer.body == b""
    assert int(answer.headers["Content-Length"]) == len(whole.body)


def test_watches_of_one_change_each_see_it_in_their_version_and_their_namespace(crowded):
    now = crowded("GET", path(KUMA)).json["metadata"]["resourceVersion"]
    query = f"?watch=true&resourceVersion={now}"
    watched = [path(KUMA), path(KOGUMA), path(KUMA), path(KUMA, "elsewhere"), f"/apis/{KUMA}/meshtimeouts"]
    with ExitStack() as stack:
        watches = [stack.enter_context(crowded.watch(f"{each}{query}")) for each in watched]
        crowded("PUT", "/meshes/crowd/meshtimeouts/t-000", timeout("t-000", "crowd", "9s"))
        there = KubeClient(crowded, "elsewhere").create(
            "there", metadata={"labels": {"kuma.io/mesh": "crowd"}}, spec=timeout()["spec"]
        )
        assert there.status == 201, there.body
        first = [watch.next() for watch in watches]
    seen = [
        (event["type"], event["object"]["apiVersion"], event["object"]["metadata"]["name"]) for event in first
    ]
    changed, new = ("MODIFIED", KUMA, "t-000"), ("ADDED", KUMA, "there")
    assert seen == [changed, ("MODIFIED", KOGUMA, "t-000"), changed, new, changed]
