"""A diff by somebody who may not read keys: those that are the same are no difference, others are."""

import json
import re

import pytest

from tests import build, tls_certificates
from tests.control_plane import LocalControlPlane
from tests.core.external_servers import AUTHORITY, made
from tests.kube_client import bind_role

PAIRS = [made(f"client-{number}", (), AUTHORITY) for number in range(2)]


def bank(pair, port=443):
    certificate = {"clientCert": {"inlineString": pair.pem}, "clientKey": {"inlineString": pair.key_pem}}
    spec = {
        "match": {"type": "HostnameGenerator", "port": port, "protocol": "tcp"},
        "endpoints": [{"address": "bank.example.com", "port": 443}],
        "tls": {"enabled": True, "verification": certificate},
    }
    return {"type": "MeshExternalService", "mesh": "default", "name": "bank", "spec": spec}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("x")) as made:
        bind_role(made, "editor", "edit")
        assert made("PUT", "/meshes/default/meshexternalservices/bank", bank(PAIRS[0])).status == 201
        yield made


def marks(text):
    return [line.strip() for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("user", ["editor", "mesh-system:admin"])
def test_a_key_is_shown_as_changed_only_where_it_is(plane, koguma, monkeypatch, user):
    groups = ["mesh-system:admin"] if user != "editor" else []
    token = plane("POST", "/tokens/user", {"name": user, "groups": groups, "validFor": "1h"}).text
    monkeypatch.setenv("KOGUMA_ADDRESS", plane.address)
    monkeypatch.setenv("KOGUMA_TOKEN", token)

    def compared(document):
        done = koguma("diff", "-f", "-", given=json.dumps(document))
        assert all(pair.key_pem[40:80] not in done.out for pair in PAIRS), "no key is shown"
        return done.code, marks(done.out)

    assert compared(bank(PAIRS[0])) == (0, [])
    assert compared(bank(PAIRS[0], port=444)) == (1, ["-    port: 443", "+    port: 444"])
    code, lines = compared(bank(PAIRS[1]))
    assert code == 1
    assert [line for line in lines if "changed" in line and line[0] == "+"], lines
    assert not [line for line in lines if "port" in line]
    stored = plane("GET", "/meshes/default/meshexternalservices/bank").json
    assert stored["spec"] == bank(PAIRS[0])["spec"], "nothing was written"


def https(hostname, **source):
    tls = {"mode": "TERMINATE", "certificates": [source]}
    return {"port": 443, "protocol": "HTTPS", "hostname": hostname, "tls": tls}


def test_lint_says_of_certificates_what_its_user_may_know(plane, koguma, monkeypatch):
    """Who may not read Secrets gets no warning about one that is there, nor about keys that are hidden."""
    listeners = [
        https("shop.lan", secret="shop"),
        https("inline.lan", inlineString=tls_certificates.server("inline.lan")),
        https("missing.lan", secret="missing"),
    ]
    gateway = build.document(
        "MeshGateway",
        "edge",
        selectors=[{"match": {"kuma.io/service": "edge"}}],
        conf={"listeners": listeners},
    )
    assert plane("POST", "/_apply", [build.document("Secret", "shop", data="eA=="), gateway]).status == 200
    monkeypatch.setenv("KOGUMA_ADDRESS", plane.address)
    found = {}
    for user, groups in (("editor", []), ("mesh-system:admin", ["mesh-system:admin"])):
        token = plane("POST", "/tokens/user", {"name": user, "groups": groups, "validFor": "1h"}).text
        monkeypatch.setenv("KOGUMA_TOKEN", token)
        lines = koguma("lint", "--live").out.splitlines()
        found[user] = [re.search(r"listener 443:(\S+)", line)[1] for line in lines if "KG028" in line]
    assert found == {"editor": [], "mesh-system:admin": ["shop.lan", "missing.lan"]}
