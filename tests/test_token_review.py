"""Review of tokens: an open stream ends soon after its token, in every form and on every control plane."""

import base64
import json
import threading
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import grpc
import pytest

from koguma.identity import tokens
from koguma.xds.hds import METHOD
from koguma.xds.hds import SERVICE as HEALTH
from koguma.xds.server import SERVICE
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.waiting import until
from tests.xds.fake_gate import schema

pytestmark = pytest.mark.slow

TAGS = {"kuma.io/service": ["web"]}
SECRET = "/meshes/default/secrets/dataplane-token-revocations-default"
KEY = "/meshes/default/secrets/dataplane-token-signing-key-default-1"
FORMS = ("delta", "sotw", "health")
METHODS = {
    "delta": f"/{SERVICE}/DeltaAggregatedResources",
    "sotw": f"/{SERVICE}/StreamAggregatedResources",
    "health": f"/{HEALTH}/{METHOD}",
}
MESSAGES = {
    "delta": "envoy.service.discovery.v3.DeltaDiscoveryRequest",
    "sotw": "envoy.service.discovery.v3.DiscoveryRequest",
    "health": "envoy.service.health.v3.HealthCheckRequestOrEndpointHealthResponse",
}


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        yield running


def token(plane, **claims):
    return plane.dataplane_token(**{"tags": TAGS, **claims})


def identifier(text):
    body = text.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["jti"]


def hello(form, name):
    message = schema().message_class(MESSAGES[form])()
    node = message.health_check_request.node if form == "health" else message.node
    node.id = f"default.{name}"
    if form != "health":
        message.type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
    return message.SerializeToString()


class OpenStream:
    """A stream of a proxy, in a thread of its own; how it ended."""

    def __init__(self, plane, form, name, shown):
        ca = (plane.data_dir / "ca.pem").read_bytes()
        where = f"localhost:{plane.plane.ports['xds']}"
        self._channel = grpc.secure_channel(where, grpc.ssl_channel_credentials(ca))
        self._stopping = threading.Event()
        self.n_messages = 0
        call = self._channel.stream_stream(METHODS[form])
        self._call = call(self._said(hello(form, name)), metadata=(("authorization", shown),))
        self.ended = None
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _said(self, first):
        yield first
        self._stopping.wait()

    def _listen(self):
        try:
            for _ in self._call:
                self.n_messages += 1
        except grpc.RpcError as error:
            self.ended = error.code().name, error.details()

    def close(self):
        self._stopping.set()
        self._call.cancel()
        self._thread.join(10)
        self._channel.close()


@contextmanager
def streams(*asked):
    with ExitStack() as stack:
        opened = [OpenStream(*parameters) for parameters in asked]
        for stream in opened:
            stack.callback(stream.close)
        yield opened


def write(plane, *documents):
    answer = plane("POST", "/_apply", list(documents))
    assert answer.status == 200, answer.body


def revoke(plane, *shown):
    data = base64.b64encode(",".join(map(identifier, shown)).encode()).decode()
    secret = {"type": "Secret", "mesh": "default", "name": SECRET.rpartition("/")[2], "data": data}
    assert plane("PUT", SECRET, secret).status in (200, 201)


def n_open(plane):
    server = plane.plane._proxies._xds
    return len(server._streams) + len(server._hds_streams)


def test_a_revocation_ends_the_streams_of_its_token_and_no_others(plane):
    write(plane, dataplane("web-1"), dataplane("web-2"), dataplane("web-3"))
    good, bad = token(plane), token(plane)
    asked = [(plane, form, f"web-{n}", bad) for n, form in enumerate(FORMS[:2], 1)]
    asked += [(plane, "health", "web-1", bad), (plane, "delta", "web-3", good)]
    with streams(*asked) as (*refused, kept):
        until(lambda: n_open(plane) == len(asked))
        revoke(plane, bad)
        until(lambda: all(stream.ended for stream in refused), "the streams end")
        for stream in refused:
            assert stream.ended == ("UNAUTHENTICATED", "authentication failed: token is revoked")
        until(lambda: n_open(plane) == 1)
        assert kept.ended is None
        with streams((plane, "delta", "web-1", bad)) as (again,):
            until(lambda: again.ended)
        (shown,) = plane("GET", "/_proxies").json["refused"]
        assert (shown["name"], "token is revoked" in shown["reason"]) == ("web-1", True)


def test_streams_end_with_the_life_of_their_token(plane, monkeypatch):
    monkeypatch.setattr(tokens, "LEEWAY_SECONDS", 0)
    write(plane, dataplane("web-1"), dataplane("web-2"))
    short = token(plane, validFor="3s")
    asked = [
        (plane, "delta", "web-1", short),
        (plane, "sotw", "web-2", short),
        (plane, "health", "web-1", short),
    ]
    with streams(*asked) as opened:
        until(lambda: n_open(plane) == len(asked))
        until(lambda: all(stream.ended for stream in opened), "the streams end")
        assert {stream.ended[0] for stream in opened} == {"UNAUTHENTICATED"}
        assert all("token is expired" in stream.ended[1] for stream in opened)


def test_a_dataplane_that_becomes_anothers_ends_the_stream_of_who_it_was(plane):
    write(plane, dataplane("web-1"))
    with streams((plane, "delta", "web-1", token(plane))) as (stream,):
        until(lambda: n_open(plane) == 1)
        write(plane, dataplane("web-1", labels={"team": "a"}))
        write(plane, dataplane("web-1", service="payments"))
        until(lambda: stream.ended, "the stream ends")
        assert stream.ended[0] == "PERMISSION_DENIED"


@pytest.mark.slow
def test_a_revocation_acts_on_every_control_plane(postgres, tmp_path):
    store = postgres.database()
    with (
        LocalControlPlane(tmp_path / "a", store=store) as first,
        LocalControlPlane(tmp_path / "b", store=store) as second,
    ):
        write(first, dataplane("web-1"))
        shown = token(first)
        until(lambda: second("GET", "/meshes/default/dataplanes/web-1").status == 200)
        with streams((second, "delta", "web-1", shown), (second, "health", "web-1", shown)) as opened:
            until(lambda: n_open(second) == 2)
            revoke(first, shown)
            until(lambda: all(stream.ended for stream in opened), "the streams end")


@pytest.mark.parametrize(
    ("hours", "ending"),
    [(0, set()), (18, set()), (20, {"short"}), (553, {"short"}), (545 + 168, {"short", "long"})],
)
def test_a_check_warns_before_tokens_end(plane, hours, ending):
    """A token of a day in its last fifth, one of 30 days in its last six."""
    write(plane, dataplane("short"), dataplane("long"))
    asked = [(plane, "delta", "short", token(plane, validFor="24h"))]
    asked += [(plane, "delta", "long", token(plane, validFor="720h"))]
    with streams(*asked):
        until(lambda: n_open(plane) == len(asked))
        side = plane.plane._proxies
        clock, side._clock = side._clock, lambda: clock() + timedelta(hours=hours)
        checks = [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "tokens"]
    named = {name for name in ("short", "long") if any(f'"{name}"' in check["message"] for check in checks)}
    assert named == ending
    assert len(checks) == len(ending)
    assert all(check["status"] == "warning" and "koguma token dataplane" in check["hint"] for check in checks)
