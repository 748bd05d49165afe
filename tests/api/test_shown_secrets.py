"""What is secret by its type appears in nothing that is derived from objects, in no form and at no door."""

import base64
import http.client
import typing

import msgspec
import pytest
from msgspec import inspect as shape

from koguma import kinds
from koguma.cli import comparison, describe, target
from koguma.cli.client import ApiResponse
from koguma.core import admission
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import CLUSTER, LISTENER
from koguma.identity import authority
from koguma.kinds.mesh import MeshBuiltinCert
from koguma.model.kind import Kinds
from koguma.runtime.clock import now
from tests import build
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role
from tests.secret_values import with_secrets

KINDS = Kinds(kinds.KINDS)
MARKER = "TheSecretMarker"
ENCODER = Encoder(schema.load(schema.find_envoy()))
MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


SECRETIVE = {kind.name: spec for kind in KINDS if (spec := with_secrets(shape.type_info(kind.spec), MARKER))}


def test_the_kinds_that_hold_secrets_are_known():
    assert set(SECRETIVE) == {
        "GlobalSecret",
        "Mesh",
        "MeshExternalService",
        "MeshGateway",
        "MeshIdentity",
        "Secret",
    }


def document(kind, spec, form):
    if form == "kubernetes":
        return {"apiVersion": "kuma.io/v1alpha1", "kind": kind.name, "metadata": {"name": "a"}, "spec": spec}
    plain = {"type": kind.name, "name": "a", **({"mesh": "default"} if kind.is_mesh_scoped else {})}
    return {**plain, **(spec if kind.inline else {"spec": spec})}


@pytest.mark.parametrize("form", ["plain", "kubernetes"])
@pytest.mark.parametrize("name", SECRETIVE)
def test_commands_that_describe_and_compare_mask_every_secret_field(name, form):
    kind, spec = KINDS[name], SECRETIVE[name]
    shown = admission.masked(spec, kind)
    assert MARKER not in str(shown)
    given = document(kind, spec, form)
    other = msgspec.json.decode(
        msgspec.json.encode(given).replace(MARKER.encode(), b"Another" + MARKER.encode())
    )
    lines = list(comparison.lines("a", given, other, kind))
    assert MARKER not in "\n".join(lines)
    assert any("(changed)" in line for line in lines), "that something changes is still seen"
    assert MARKER not in "\n".join(comparison.lines("a", None, given, kind))
    if form == "plain":
        headers = http.client.HTTPMessage()
        headers["ETag"] = '"1"'
        answer = ApiResponse(
            200, headers, given, "GET /", target.ServerTarget("http://127.0.0.1:1", "a test")
        )
        assert MARKER not in "\n".join(describe.lines(answer, kind, now()))


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("shown")) as plane:
        bind_role(plane, "viewer", "view")
        pair = authority.make("m", MeshBuiltinCert(), now())
        documents = [*services(pair), web()]
        answer = plane("POST", "/_apply", documents)
        assert answer.status == 200, answer.body
        plane.pair = pair
        yield plane


def services(pair):
    """Services that start TLS with what stands in them, in every spelling, and in a Secret with all of it."""
    bundle = f"{pair.certificate}{pair.key.reveal()}"
    texts = {"caCert": bundle, "clientCert": bundle, "clientKey": bundle}
    spellings = {
        "text": lambda text: {"inlineString": text},
        "bytes": lambda text: {"inline": base64.b64encode(text.encode()).decode()},
        "newer": lambda text: {"type": "InsecureInline", "insecureInline": {"value": text}},
        "secret": lambda _: {"secret": "bundle"},
    }
    yield build.secret("bundle", base64.b64encode(bundle.encode()).decode())
    for index, (name, spelled) in enumerate(spellings.items()):
        tls = {"enabled": True, **{field: spelled(text) for field, text in texts.items()}}
        endpoints = [{"address": "1.2.3.4", "port": 443}]
        yield build.external_service(name, 80 + index, endpoints=endpoints, tls=tls)


def web():
    """A Dataplane that calls all of the services."""
    refs = [
        {"kind": "MeshExternalService", "name": name, "port": 80 + index}
        for index, name in enumerate(("text", "bytes", "newer", "secret"))
    ]
    outbound = [{"port": 9000 + index, "backendRef": ref} for index, ref in enumerate(refs)]
    return build.dataplane(outbound=outbound)


DOORS = (
    "_config",
    "_config?shadow=true&include=diff",
    "_rules?origins=fields",
    "_policies?origins=fields",
    "_layout",
)


@pytest.mark.parametrize("user", ["viewer", "mesh-system:admin"])
def test_no_door_that_shows_configuration_gives_a_key_or_a_text_away(plane, user):
    as_user = {} if user == "mesh-system:admin" else {"Impersonate_User": user}
    pair = plane.pair
    lines = [line for line in f"{pair.certificate}{pair.key.reveal()}".splitlines() if len(line) > 40]
    paths = [f"/meshes/default/dataplanes/web-1/{door}" for door in DOORS]
    paths += ["/_proxies", "/config", "/metrics"]
    assert plane("GET", paths[0], **as_user).body.count(b"UpstreamTlsContext") == 4
    for path in paths:
        answer = plane("GET", path, **as_user)
        assert answer.status == 200, (path, answer.body)
        assert not any(line.encode() in answer.body for line in lines), path
        assert b"PRIVATE KEY" not in answer.body, path


def test_sensitive_fields_of_envoys_own_messages_are_masked_wherever_they_are():
    certificate = {
        "certificate_chain": {"inline_string": MARKER},
        "private_key": {"inline_bytes": base64.b64encode(MARKER.encode()).decode()},
        "password": {"filename": "/a/path"},
    }
    tls = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {"tls_certificates": [certificate]},
    }
    users = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth",
        "users": {"inline_string": MARKER},
    }
    manager = {
        "@type": f"type.googleapis.com/{MANAGER}",
        "stat_prefix": "a",
        "route_config": {"name": "kept"},
        "http_filters": [{"name": "auth", "typed_config": users}],
    }
    chain = {
        "filters": [{"name": "hcm", "typed_config": manager}],
        "transport_socket": {"name": "tls", "typed_config": tls},
    }
    listener = ENCODER.resource(LISTENER, "l", {"name": "l", "filter_chains": [chain]})
    shown = msgspec.json.encode(ENCODER.shown(listener)).decode()
    assert MARKER not in shown
    assert base64.b64encode(MARKER.encode()).decode() not in shown
    assert "/a/path" in shown
    assert '"kept"' in shown
    cluster = {
        "name": "c",
        "transport_socket_matches": [
            {"name": "m", "transport_socket": {"name": "tls", "typed_config": upstream()}}
        ],
    }
    assert MARKER not in msgspec.json.encode(ENCODER.shown(ENCODER.resource(CLUSTER, "c", cluster))).decode()


def upstream() -> dict[str, typing.Any]:
    return {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {"trusted_ca": {"inline_string": MARKER}}},
    }
