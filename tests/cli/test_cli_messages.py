"""What a new user reads when something is wrong: each case is what he types, and the words that lead him on.

Cases without a server come first; the others ask a real control plane.
"""

import json
from typing import Any, NamedTuple

import pytest

TAB = "type: MeshTimeout\nname: quick\nmesh: default\nspec:\n\tto: []\n"
USE_SPACES = "a tab stands here, and YAML forbids tabs for indentation: use spaces"
GET_HELP = " - `koguma get --help` says more"


class Message(NamedTuple):
    """A command line, what it reads from standard input, and what it must and must not say."""

    words: str
    says: str
    given: str = ""
    code: int = 2
    never: str = ""


OFFLINE = (
    Message("lint -f -", f"<stdin>:5:1: {USE_SPACES}", TAB, code=1),
    Message("apply -f -", f"<stdin>:5:1: {USE_SPACES}", TAB, code=1),
    Message("lint -f -", f"<stdin>:3:1: {USE_SPACES}", "spec:\n  a: 1\n\tb: 2\n", code=1),
    Message("lint -f -", "cannot start any token", "a: `x\n", code=1, never="tab"),
    Message("apply x.yaml", "files are given with -f: koguma apply -f x.yaml"),
    Message("apply -f a.yaml b.yaml", "files are given with -f: koguma apply -f a.yaml -f b.yaml"),
    Message("diff x.yaml", "files are given with -f: koguma diff -f x.yaml"),
    Message("lint a.yaml b.yaml", "files are given with -f: koguma lint -f a.yaml -f b.yaml"),
    Message("get meshes --all", "No such option --all; did you mean --all-meshes?", never="labels"),
    Message("get mt --all-namespaces", "did you mean --all-meshes?"),
    Message("get mt -n shop", "did you mean --mesh?"),
    Message("get mt --labls a=b", "did you mean --labels?"),
    Message("get mt --nothing-like-it", "No such option --nothing-like-it", never="did you mean"),
    Message("delete mt --all", "`koguma get KIND -o name | xargs koguma delete`"),
    Message("frobnicate", "`koguma --help` lists them", never="did you mean"),
    Message("aply", 'did you mean "apply"?'),
    Message("kri build --type events --name a", 'unknown kind "events"', never="did you mean"),
    *(
        Message("lint -f -", f"use {successor}", f"type: {kind}\nname: a\nmesh: default\n", code=1)
        for kind, successor in {
            "TrafficRoute": "MeshHTTPRoute or MeshTCPRoute",
            "TrafficPermission": "MeshTrafficPermission",
            "Timeout": "MeshTimeout",
            "Retry": "MeshRetry",
            "CircuitBreaker": "MeshCircuitBreaker",
            "HealthCheck": "MeshHealthCheck",
            "RateLimit": "MeshRateLimit",
            "FaultInjection": "MeshFaultInjection",
            "TrafficLog": "MeshAccessLog",
            "TrafficTrace": "MeshTrace",
            "VirtualOutbound": "HostnameGenerator",
            "ExternalService": "MeshExternalService",
            "MeshGatewayRoute": "MeshHTTPRoute or MeshTCPRoute with targetRef kind MeshGateway",
            "ProxyTemplate": "MeshProxyPatch",
        }.items()
    ),
)


@pytest.mark.parametrize("case", OFFLINE, ids=lambda case: f"{case.words}: {case.says[:40]}")
def test_words_lead_to_the_next_step(koguma, case):
    ended = koguma(*case.words.split(), given=case.given)
    told = ended.out + ended.err
    assert (ended.code, case.says in told) == (case.code, True), told
    assert not case.never or case.never not in told


def policy(kind: str, spec: Any) -> str:
    return json.dumps({"type": kind, "name": "a", "mesh": "default", "spec": spec})


@pytest.mark.parametrize(
    ("kind", "spec", "field", "hint"),
    [
        (
            "MeshTimeout",
            {"to": [{"targetRef": {"kind": "MeshServic", "name": "b"}, "default": {"idleTimeout": "1s"}}]},
            "spec.to[0].targetRef.kind",
            'did you mean "MeshService"?',
        ),
        # A destination is what MeshService would be, but this place takes none.
        (
            "MeshRateLimit",
            {"to": [{"targetRef": {"kind": "MeshServic", "name": "b"}, "default": {}}]},
            "spec.to[0].targetRef.kind",
            "here it can be Mesh",
        ),
        (
            "MeshTrace",
            {"targetRef": {"kind": "Dataplan"}, "default": {"backends": []}},
            "spec.targetRef.kind",
            'did you mean "Dataplane"?',
        ),
        (
            "MeshRetry",
            {"to": [{"targetRef": {"kind": "MeshSubset"}, "default": {"tcp": {"maxConnectAttempt": 1}}}]},
            "spec.to[0].targetRef.kind",
            "value 'MeshSubset' is not supported; use Mesh, MeshService, MeshExternalService,",
        ),
        (
            "MeshRateLimit",
            {"rules": [{"default": {"local": {"tcp": {"disabled": True}}}}]},
            "spec.rules",
            "must not be defined; spec.targetRef includes gateways, which have no rules: select only sidec",
        ),
        ("MeshTimeout", {"tto": []}, "spec.tto", 'did you mean "to"?'),
        ("MeshTimeout", {"something": []}, "spec.something", "known fields are targetRef, to, from, rules"),
    ],
)
def test_a_wrong_word_in_a_policy_is_told_with_the_right_one(koguma, kind, spec, field, hint):
    ended = koguma("lint", "-f", "-", given=policy(kind, spec))
    lines = [line for line in ended.out.splitlines() if f"KG000: {field}: " in line]
    assert len(lines) == 1, ended.out
    assert hint in lines[0]
