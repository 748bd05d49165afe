"""What anybody can send without a token: long paths and headers, encoded slashes, bodies that never end."""

import gc
import gzip
import socket
import threading
import tracemalloc

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane

pytestmark = pytest.mark.slow

STRANGER = {"X_Forwarded_For": "203.0.113.7"}  # sent by another machine through a proxy: nobody's
N_REQUESTS = 100
LONG = 7_500


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("strangers")) as found:
        yield found


def requests(number: int):
    """One of each sort, different each time."""
    long = f"{number:05}" + "x" * LONG
    yield f"/meshes/default/meshtimeouts/{long}", {}
    yield f"/{long}", {}
    yield f"/apis/{long}", {}
    yield f"/apis/kuma.io/v1alpha1/namespaces/{long}/meshtimeouts", {}
    yield f"/openapi/v3/{long}", {}
    yield f"/_kri/{long}", {}
    yield "/meshes", {"Host": long}
    yield "/apis", {"Accept": f"application/json;q={long}"}
    yield "/apis/kuma.io/v1alpha1/meshtimeouts", {"Accept": f"application/json;q={long}"}
    yield f"/apis/kuma.io/v1alpha1/meshtimeouts?labelSelector=a%3D{long}", {}
    yield f"/apis/kuma.io/v1alpha1/meshtimeouts?fieldSelector=metadata.name%3D{long}", {}
    yield "/meshes", {"Impersonate_User": long}


def sent(plane: LocalControlPlane, numbers: range, **who: str) -> None:
    for number in numbers:
        for path, headers in requests(number):
            plane("GET", path, **who, **headers)


def test_what_strangers_send_is_not_kept_in_memory(plane) -> None:
    sent(plane, range(5), **STRANGER)  # what is made once is made
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        sent(plane, range(100, 100 + N_REQUESTS), **STRANGER)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Libraries keep the last 128 addresses, and the last 128 queries; more than that is ours.
    assert after - before < 3 * 128 * LONG


def test_an_encoded_slash_leads_nowhere_else(plane) -> None:
    assert plane("PUT", "/meshes/default/meshtimeouts/slow", timeout()).status == 201
    for path in (
        "/meshes/default/meshtimeouts%2fslow",
        "/meshes/default%2Fmeshtimeouts/slow",
        "/meshes%2fdefault/meshtimeouts/slow",
        "/apis/kuma.io/v1alpha1/namespaces/mesh-default%2fmeshtimeouts/slow",
        "/apis/kuma.io%2Fv1alpha1/meshtimeouts",
        "/%2fmeshes",
    ):
        for method in ("GET", "PUT", "DELETE"):
            answer = plane(method, path, timeout() if method == "PUT" else None)
            assert (answer.status, "%2F" in answer.json.get("detail", "")) == (400, True)
    assert plane("GET", "/meshes/default/meshtimeouts/slow").status == 200
    assert (
        plane("GET", "/meshes/default/meshtimeouts/slo%77").status == 200
    )  # other characters may be encoded
    assert plane("GET", "/meshes?filter%5Blabels.a%5D=x%2fy").status != 400  # and in a query the slash, too


def test_a_path_that_was_answered_does_not_answer_its_encoded_form(plane) -> None:
    assert plane("GET", "/meshes/default").status == 200
    assert plane("GET", "/meshes/default").status == 200
    assert plane("GET", "/meshes%2fdefault").status == 400


@pytest.mark.parametrize(
    ("method", "path", "media"),
    [
        ("PUT", "/meshes/default/meshtimeouts/slow", "application/json"),
        ("PATCH", "/meshes/default", "application/merge-patch+json"),
        ("POST", "/_apply", "application/yaml"),
        ("POST", "/tokens/user", "application/json"),
        ("POST", "/api/v1/namespaces", "application/json"),
        ("PATCH", "/api/v1/namespaces/default?fieldManager=me", "application/apply-patch+yaml"),
        ("DELETE", "/api/v1/namespaces/nobody", "application/json"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "application/json"),
    ],
)
def test_a_body_that_trickles_is_not_waited_for(plane, monkeypatch, method, path, media) -> None:
    monkeypatch.setattr("koguma.api.call.BODY_SECONDS_MAX", 0.3)
    headers = f"Host: localhost\r\nContent-Type: {media}\r\nContent-Length: 100000"
    head = f"{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", plane.port), timeout=60) as connection:
        connection.sendall(head.encode())
        answered = threading.Event()

        def trickle() -> None:
            while not answered.wait(0.02):  # never a pause that a limit between two pieces would see
                connection.sendall(b" ")

        sender = threading.Thread(target=trickle)
        sender.start()
        answer = connection.recv(65536)
        answered.set()
        sender.join()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not come within" in answer


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("path", ["/_apply", "/tokens/user", "/api/v1/namespaces"])
def test_a_compressed_body_is_refused_and_not_decompressed(plane, path, encoding) -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    answer = plane("POST", path, bomb, Content_Encoding=encoding)
    assert answer.status == 415
    assert b"send it uncompressed" in answer.body


def large_yaml(n_labels: int) -> bytes:
    """A body of megabytes; its labels are refused at the end, after all is read."""
    lines = ["type: MeshTimeout", "name: slow", "mesh: default", "spec: {}", "labels:"]
    lines += [f"  label-{number:06}-xxxxxxxxxxxxxxxxxxxx: value" for number in range(n_labels)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("path", "n_labels"),
    [("/_apply", 90_000), ("/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshtimeouts", 70_000)],
)
def test_others_are_answered_while_a_large_body_is_read(plane, path, n_labels) -> None:
    body = large_yaml(n_labels)
    answers = []
    sender = threading.Thread(
        target=lambda: answers.append(plane("POST", path, body, Content_Type="application/yaml"))
    )
    sender.start()
    n_answered = 0
    while sender.is_alive():
        assert plane("GET", "/healthy").status == 200
        n_answered += not answers
    sender.join()
    assert answers[0].status in (400, 422)
    assert n_answered > 5, "one or two if nobody were answered meanwhile"
