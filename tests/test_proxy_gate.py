"""A token that was verified when a connection began counts for its proxy, as long as it holds."""

import json
from base64 import b64decode, b64encode
from datetime import timedelta

import pytest

from koguma.model.errors import Unauthenticated
from tests.build import mesh, secret
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import web_token


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("gate")) as running:
        assert running("PUT", "/meshes/other", mesh("other")).status == 201
        yield running


@pytest.fixture
def gate(plane):
    return plane.plane._proxies.fleet.gate


def test_a_token_is_verified_once_for_a_connection(plane, gate):
    token = web_token(plane)
    gate.authenticate(token)
    assert len(gate._authenticated) == 1
    verified = gate.presented("default", f"Bearer {token}")
    assert verified.claims.tags == {"kuma.io/service": ("web",)}
    assert not gate._authenticated
    assert gate.presented("default", token) is not verified


def test_a_token_of_another_mesh_does_not_count(plane, gate):
    token = web_token(plane)
    gate.authenticate(token)
    with pytest.raises(Unauthenticated):
        gate.presented("other", token)


def test_a_token_that_expires_meanwhile_does_not_count(plane, gate, monkeypatch):
    token = web_token(plane)
    gate.authenticate(token)
    clock = gate._clock
    monkeypatch.setattr(gate, "_clock", lambda: clock() + timedelta(hours=2))
    with pytest.raises(Unauthenticated):
        gate.presented("default", token)


def test_a_token_that_is_revoked_meanwhile_does_not_count(plane, gate):
    token = web_token(plane)
    gate.authenticate(token)
    name = "dataplane-token-revocations-default"
    claims = json.loads(b64decode(token.split(".")[1] + "=="))
    revoked = secret(name, b64encode(claims["jti"].encode()).decode())
    assert plane("PUT", f"/meshes/default/secrets/{name}", revoked).status == 201
    with pytest.raises(Unauthenticated):
        gate.presented("default", token)


def test_tokens_of_connections_that_end_early_are_forgotten(plane, gate, monkeypatch):
    monkeypatch.setattr("koguma.fleet.gate._AUTHENTICATED_MAX", 2)
    for number in range(4):
        gate.authenticate(web_token(plane, name=f"web-{number}"))
    assert len(gate._authenticated) == 2
