"""What a new user reads when something is wrong: each case is what he types, and the words that lead him on.

Cases without a server come first; the others ask a real control plane.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import build

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
    Message("apply x.yaml", "files are given with -f: koguma apply -f x.yaml", code=1),
    Message("apply -f a.yaml b.yaml", "files are given with -f: koguma apply -f a.yaml -f b.yaml", code=1),
    Message("diff x.yaml", "files are given with -f: koguma diff -f x.yaml"),
    Message("lint a.yaml b.yaml", "files are given with -f: koguma lint -f a.yaml -f b.yaml"),
    Message("get meshes --all", "No such option --all; did you mean --all-meshes?", never="labels"),
    Message("get mt --all-namespaces", "did you mean --all-meshes?"),
    Message("get mt -n shop", "did you mean --mesh?"),
    Message("get mt --labls a=b", "did you mean --labels?"),
    Message("get mt --nothing-like-it", "No such option --nothing-like-it", never="did you mean"),
    Message("delete mt --all", "`koguma get KIND -o name | xargs koguma delete`", code=1),
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
    output = ended.out + ended.err
    assert (ended.code, case.says in output) == (case.code, True), output
    assert not case.never or case.never not in output


def policy(kind: str, spec: Any) -> str:
    return json.dumps(build.document(kind, "a", spec=spec))


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


@pytest.fixture
def cli(koguma, monkeypatch, control_plane):
    """`koguma` with the control plane's address in the environment."""
    monkeypatch.setenv("KOGUMA_ADDRESS", control_plane.address)
    return koguma


ONLINE = (
    Message("apply -f -", f"<stdin>:5:1: {USE_SPACES}", TAB, code=1),
    Message("delete x.yaml", "files are given with -f: koguma delete -f x.yaml", code=1),
    Message(
        "get ./x.yaml", "./x.yaml is a file, and a stored object is meant here; `koguma diff -f ./x.yaml`"
    ),
    Message(
        "get events", "events are kept in the Kubernetes form only: `koguma kubeconfig --merge`", never="did"
    ),
    Message("get pods", "`koguma get dataplanes`", never="did you mean"),
    Message("get services", 'did you mean "MeshService"?'),
    Message("get meshtimeot", 'did you mean "MeshTimeout"?'),
    Message("get nothing-like-it", "`koguma kinds` lists them", never="did you mean"),
    Message(
        "get traffic-routes", "TrafficRoute is one of Kuma's older kinds; use MeshHTTPRoute or MeshTCPRoute"
    ),
    Message("get retries", "use MeshRetry"),
    Message("get all -w", "-w watches one kind"),
    Message("apply -f -", "use MeshTrafficPermission", "type: TrafficPermission\nname: a\nmesh: a\n", code=1),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", ONLINE, ids=lambda case: f"{case.words}: {case.says[:40]}")
def test_words_of_a_server_lead_to_the_next_step(cli, case):
    test_words_lead_to_the_next_step(cli, case)


@pytest.mark.slow
def test_all_of_a_mesh_is_shown_without_secrets(cli):
    cli("apply", "-f", "-", given="{type: Mesh, name: whole}")
    names = cli("get", "all", "-m", "whole", "-o", "name").out.split()
    assert "meshtimeout/mesh-timeout-all-whole" in names
    assert not any(name.startswith(("secret/", "mesh/")) for name in names)
    table = cli("get", "all", "-m", "whole").out
    assert re.search(
        r"^MeshRetry:\nNAME +MESH +TARGET +AGE\nmesh-retry-all-whole +whole", table, re.MULTILINE
    )
    everywhere = json.loads(cli("get", "all", "-A", "-o", "json").out)
    kinds = {item["type"] for item in everywhere["items"]}
    assert {"Mesh", "MeshTimeout"} <= kinds
    assert not kinds & {"Secret", "GlobalSecret", "MeshInsight"}
    assert cli("get", "all", "-m", "nothing").code == 1


@pytest.fixture
def token_file(cli, tmp_path):
    """Writes a token to a file, as `koguma token` issues it."""

    def issued(*words: str) -> str:
        ended = cli("token", *words)
        assert ended.code == 0, ended.err
        file = tmp_path / "-".join(words)
        file.write_text(ended.out)
        return str(file)

    return issued


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("dataplane", "-m", "default"), 'a dataplane token for mesh "default"'),
        (("zone", "--zone", "east"), "a zone token"),
    ],
)
def test_a_token_for_something_else_is_named_on_the_api(cli, token_file, words, kind):
    ended = cli("get", "meshes", "--token-file", token_file(*words))
    assert ended.code == 4
    assert ended.err == (
        "error: Invalid authentication data: could not parse token: signature is invalid; the token says that"
        f" it is {kind}, and a user token is needed here:"
        " `koguma token user --name NAME --valid-for 24h` issues one\n"
    )


@pytest.mark.slow
def test_a_token_is_inspected_by_the_control_plane(cli, token_file, control_plane):
    file = token_file("dataplane", "-m", "default", "--name", "web-1")
    ended = cli("token", "inspect", file)
    assert ended.code == 0
    assert re.search(r"^holds: +yes\npurpose: +dataplane$", ended.out, re.MULTILINE)
    assert re.search(r"^Name: +web-1$", ended.out, re.MULTILINE)
    joe = token_file("user", "--name", "joe", "--valid-for", "1h")
    given = Path(joe).read_text()
    shown = cli("token", "inspect", "-", given=given)
    assert re.search(r"^holds: +yes: the control plane takes it for user joe ", shown.out, re.MULTILINE)
    assert given.strip() not in shown.out
    denied = cli("token", "inspect", file, "--token-file", joe)
    assert (denied.code, "not checked: Access Denied: " in denied.out) == (0, True)
    assert cli("token", "revoke", "user", "-", given=given).code == 0
    revoked = cli("token", "inspect", joe)
    assert (revoked.code, "no: token is revoked" in revoked.out) == (1, True)
    assert json.loads(cli("token", "inspect", joe, "-o", "json").out)["valid"] is False


@pytest.mark.slow
def test_a_review_tells_nothing_to_who_may_not_issue(control_plane, token_file):
    token = Path(token_file("user", "--name", "ann", "--valid-for", "1h")).read_text().strip()
    bearer = f"Bearer {token}"
    answer = control_plane("POST", "/tokens/_review", {"token": "a.b.c"}, Authorization=bearer)
    assert answer.status == 403
    assert control_plane("POST", "/tokens/_review", {"token": 5}).status == 400
    review = control_plane("POST", "/tokens/_review", {"token": "a.b.c"}).json
    assert (review["valid"], review["purpose"]) == (False, "")


@pytest.mark.slow
def test_who_is_refused_reads_who_can_allow_it_and_it_helps(cli, token_file, control_plane):
    file = token_file("user", "--name", "Vera Vi", "--valid-for", "1h")
    ended = cli("get", "meshes", "--token-file", file)
    assert ended.code == 4
    expected = (
        'user "Vera Vi/mesh-system:authenticated" cannot list meshes.rest.koguma.io: no access rule allows it'
    )
    assert expected in ended.err
    command = shlex.split(ended.err.split("`")[1])
    assert command[:4] == ["kubectl", "create", "clusterrolebinding", "vera-vi-view"]
    options = dict(word.removeprefix("--").split("=", 1) for word in command[4:])
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": command[3]},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": options["clusterrole"]},
        "subjects": [{"apiGroup": group, "kind": "User", "name": options["user"]}],
    }
    answer = control_plane("POST", f"/apis/{group}/v1/clusterrolebindings", binding)
    assert answer.status == 201, answer.body
    assert cli("get", "meshes", "--token-file", file).code == 0
    written = cli("apply", "-f", "-", "--token-file", file, given="{type: Mesh, name: veras}")
    assert "--clusterrole=edit" in written.err
    secret = cli("get", "globalsecrets", "--token-file", file)
    assert (
        "administrators (group mesh-system:admin) may, and whoever gets a role with a rule for" in secret.err
    )


def connected(name: str, state: str = "synced", **changed: Any) -> dict[str, Any]:
    """A proxy as `/_proxies` shows it."""
    return {
        "name": name,
        "mesh": "default",
        "kri": f"kri_dp_default___{name}_",
        "instance": "a",
        "state": state,
        "revision": 7,
        "behindSeconds": 0,
        "envoy": "1.35.0",
        "connectedAt": "2026-01-01T00:00:00Z",
        "rejections": [],
        "failures": [],
        **changed,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (
            (),
            [
                "EVENT NAME MESH STATE",
                "added web-1 default synced",
                "modified web-1 default NACK",
                "",
                "web-1 refused",
                "  bad",
                "added web-2 default synced",
                "deleted web-1 default NACK",
            ],
        ),
        (("-o", "name"), ["proxy/web-1", "proxy/web-1", "proxy/web-2", "proxy/web-1"]),
    ],
)
def test_proxies_are_watched(fake, form, lines):
    refused = {"type": "Listener", "names": ["inbound"], "text": "bad"}
    for items in (
        [connected("web-1")],
        [connected("web-1", behindSeconds=3.0)],  # how long it is behind is no change
        [connected("web-1", "nack", rejections=[refused])],
        [connected("web-1", "nack", rejections=[refused]), connected("web-2")],
        *([[connected("web-2")]] * 60),
    ):
        fake.answer(200, {"total": len(items), "items": items})
    command = [str(Path(sys.executable).parent / "koguma"), "get", "proxies", "-w", "--address", fake.address]
    with subprocess.Popen(
        [*command, *form], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            shown = [process.stdout.readline() for _ in lines]
            assert [
                " ".join(line.split()[: len(want.split())]) for line, want in zip(shown, lines, strict=True)
            ] == [" ".join(line.split()) for line in lines]
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
            assert process.returncode == 130
        finally:
            process.kill()
