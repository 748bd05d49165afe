"""What a writer hears: a dry run, a diff and the write itself say the same, in both forms; deletions too."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import build
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.kube_client import KubeClient

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "lint.md"
# Said by admission in words of its own, without the code that `lint` gives it.
WITHOUT_A_CODE = ("KG004", "KG007")
TOLD = ("KG001", "KG002", "KG003", "KG005", "KG006", "KG008", "KG009", "KG010", "KG011", "KG016", "KG028")


def examples() -> dict[str, list[dict[str, Any]]]:
    """The objects by which the manual shows each code."""
    parts = re.split(r"^## (KG\d+)\n", PAGE.read_text(), flags=re.MULTILINE)
    by_code = {}
    for code, section in zip(parts[1::2], parts[2::2], strict=True):
        example = re.search(r"^```yaml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        if example and code not in ("KG000", "KG015", "KG017"):  # what is refused, or needs another package
            by_code[code] = list(yaml.safe_load_all(example[1]))
    return by_code


EXAMPLES = examples()


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path / "cp") as running:
        yield running


def applied(plane: LocalControlPlane, objects: list[Any], query: str = "") -> list[str]:
    answer = plane("POST", f"/_apply{query}", objects)
    assert answer.status == 200, answer.body
    return [text for result in answer.json["results"] for text in result.get("warnings", ())]


def path_of(plane: LocalControlPlane, document: Any) -> str:
    plural = next(
        resource["path"]
        for resource in plane("GET", "/_resources").json["resources"]
        if resource["name"] == document["type"]
    )
    within = f"/meshes/{document['mesh']}" if "mesh" in document else ""
    return f"{within}/{plural}/{document['name']}"


def complained(ended: Any) -> list[str]:
    """The warnings of a command; where in a file they stand is told before the first colon and space."""
    assert ended.code in (0, 1), ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("warning: ")]
    return [line.removeprefix("warning: ").partition(": ")[2] for line in lines]


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_dry_run_and_a_diff_say_all_that_apply_says(plane, koguma, code):
    objects, where = EXAMPLES[code], ("--address", plane.address)
    given = yaml.safe_dump_all(objects)
    trials = [
        applied(plane, objects, "?dryRun=All"),
        complained(koguma("apply", "-f", "-", "--dry-run", *where, given=given)),
        complained(koguma("diff", "-f", "-", *where, given=given)),
    ]
    warnings = applied(plane, objects)
    assert trials == [warnings] * 3
    assert bool(warnings) or code not in (*TOLD, *WITHOUT_A_CODE)
    assert f"({code})" in " ".join(warnings) or code not in TOLD
    assert complained(koguma("apply", "-f", "-", *where, given=given)) == warnings


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_dry_run_of_one_object_says_all_that_its_write_says(plane, code):
    *others, last = EXAMPLES[code]
    if others:
        applied(plane, others)
    path = path_of(plane, last)
    tried = plane("PUT", f"{path}?dryRun=All", last).json.get("warnings")
    written = plane("PUT", path, last).json.get("warnings")
    assert tried == written
    stored = plane("GET", f"{path}?format=kubernetes&namespace=mesh-default").json
    # As Kuma prints it, a MeshGateway has no namespace; it is served in that of its mesh.
    default = "mesh-default" if last["type"] == "MeshGateway" else ""
    kube = KubeClient(plane, stored["metadata"].get("namespace", default), kind=last["type"])
    name, change = stored["metadata"]["name"], {"metadata": {"annotations": {"a": "b"}}}
    warned = [kube.patch(name, change, query=query).warnings for query in ({"dryRun": "All"}, {})]
    assert warned[0] == warned[1]
    odd = [text for text in written or () if re.search(r"\(KG\d+\)$", text)]
    assert [text for text in warned[0] if re.search(r"\(KG\d+\)$", text)] == odd


def service(name: str, **fields: Any) -> dict[str, Any]:
    return build.mesh_service(name, selector={"dataplaneTags": {"app": name}}, **fields)


def to(kind: str, name: str, policy: str) -> dict[str, Any]:
    spec = {
        "to": [{"targetRef": {"kind": kind, "name": name}, "default": {"http": {"requestTimeout": "1s"}}}]
    }
    return timeout(policy, spec=spec)


def route(name: str, *backends: str) -> dict[str, Any]:
    refs = [build.service_ref(backend, port=80) for backend in backends]
    return build.http_route(name, build.http_rule(backends=refs), to=backends[0])


PERMISSION = {
    "type": "MeshTrafficPermission",
    "mesh": "default",
    "name": "all",
    "spec": {
        "rules": [{"default": {"allow": [{"spiffeID": {"type": "Prefix", "value": "spiffe://default/"}}]}}]
    },
}
SECURE = {
    "type": "Mesh",
    "name": "default",
    "mtls": {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]},
}
EXTERNAL = {
    "type": "MeshExternalService",
    "mesh": "default",
    "name": "bank",
    "spec": {
        "match": {"type": "HostnameGenerator", "port": 443, "protocol": "http"},
        "endpoints": [{"address": "bank.example", "port": 443}],
        "tls": {"enabled": True, "verification": {"caCert": {"secret": "bank-ca"}}},
    },
}
SECRET = {"type": "Secret", "mesh": "default", "name": "bank-ca", "data": "eA=="}
COLLECTOR = {
    "type": "MeshOpenTelemetryBackend",
    "mesh": "default",
    "name": "otel",
    "labels": {"team": "ops"},
    "spec": {"endpoint": {"address": "otel.example", "port": 4317}, "protocol": "grpc"},
}
METRIC = {
    "type": "MeshMetric",
    "mesh": "default",
    "name": "to-ops",
    "spec": {
        "default": {
            "backends": [
                {
                    "type": "OpenTelemetry",
                    "openTelemetry": {
                        "backendRef": {"kind": "MeshOpenTelemetryBackend", "labels": {"team": "ops"}}
                    },
                }
            ]
        }
    },
}
PROXY = {
    "type": "Dataplane",
    "mesh": "default",
    "name": "web-1",
    "networking": {
        "address": "127.0.0.1",
        "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}],
        "outbound": [{"port": 9000, "backendRef": {"kind": "MeshService", "name": "backend", "port": 80}}],
    },
}
NO_CALLS = (
    'mesh "default" has mTLS, and there is no MeshTrafficPermission in it, so every call between its proxies'
    " is denied; write a MeshTrafficPermission that allows somebody (KG016)"
)
WHERE = "(mesh default zone default)"


def nowhere(*who: str) -> list[str]:
    """The warning that these refer to an object that goes."""
    many = "1 object then refers" if len(who) == 1 else f"{len(who)} objects then refer"
    more = f" and {len(who) - 5} more" if len(who) > 5 else ""
    return [f"{many} to nothing (KG002): {', '.join(who[:5])}{more}"]


# What is there, which of it is deleted, and what whoever does that hears.
DELETIONS = {
    "a service that nobody refers to": ([service("backend")], 0, []),
    "a service of a route and a policy": (
        [
            service("backend"),
            service("other"),
            route("split", "other", "backend"),
            to("MeshService", "backend", "t"),
        ],
        0,
        nowhere(
            f'MeshHTTPRoute "split" {WHERE} at spec.to[0].rules[0].default.backendRefs[1]',
            f'MeshTimeout "t" {WHERE} at spec.to[0].targetRef',
        ),
    ),
    "a service of many policies": (
        [service("backend"), *(to("MeshService", "backend", f"t{number}") for number in range(8))],
        0,
        nowhere(
            *(f'MeshTimeout "t{number}" {WHERE} at spec.to[0].targetRef' for number in range(8)),
        ),
    ),
    "a route of a policy": (
        [service("backend"), route("split", "backend"), to("MeshHTTPRoute", "split", "t")],
        1,
        nowhere(f'MeshTimeout "t" {WHERE} at spec.to[0].targetRef'),
    ),
    "a service of a proxy's outbound": (
        [service("backend"), PROXY],
        0,
        nowhere(f'Dataplane "web-1" {WHERE} at networking.outbound[0].backendRef'),
    ),
    "a secret of an external service": (
        [SECRET, EXTERNAL],
        0,
        nowhere(f'MeshExternalService "bank" {WHERE} at spec.tls.verification.caCert'),
    ),
    "a certificate of a gateway": (
        [{**SECRET, "name": "shop"}, EXAMPLES["KG028"][1]],
        0,
        nowhere(f'MeshGateway "edge" {WHERE} at conf.listeners[0].tls.certificates[0].secret'),
    ),
    "a collector of a policy": (
        [COLLECTOR, METRIC],
        0,
        nowhere(f'MeshMetric "to-ops" {WHERE} at spec.default.backends[0].openTelemetry.backendRef'),
    ),
    "one of two permissions": ([PERMISSION, {**PERMISSION, "name": "more"}, SECURE], 0, []),
    "the last permission": ([PERMISSION, SECURE], 0, [NO_CALLS]),
    "the last permission of a mesh without mTLS": ([PERMISSION], 0, []),
}


@pytest.mark.parametrize("case", DELETIONS)
def test_whoever_deletes_hears_what_then_leads_nowhere(plane, koguma, case):
    there, index, expected = DELETIONS[case]
    gone = there[index]
    applied(plane, there)
    path, where = path_of(plane, gone), ("--address", plane.address)
    words = (gone["type"], gone["name"], "-m", "default", *where)
    assert plane("DELETE", f"{path}?dryRun=All").json.get("warnings", []) == expected
    assert complained(koguma("delete", *words, "--dry-run")) == expected
    shown = plane("GET", f"{path}?format=kubernetes&namespace=mesh-default").json["metadata"]
    if gone["type"] != "Secret":  # which has a kind of Kubernetes' own there
        kube = KubeClient(plane, shown.get("namespace", "kuma-system"), kind=gone["type"])
        tried = kube.send("DELETE", shown["name"], query={"dryRun": "All"})
        assert (tried.status, tried.warnings) == (200, expected)
        assert kube.send("DELETE", shown["name"]).warnings == expected
        applied(plane, there)
    assert complained(koguma("delete", *words)) == expected
    applied(plane, there)
    assert plane("DELETE", path).json.get("warnings", []) == expected


def test_what_goes_together_is_not_missed(plane, koguma, tmp_path):
    file = tmp_path / "all.yaml"
    file.write_text(
        yaml.safe_dump_all([to("MeshHTTPRoute", "split", "t"), route("split", "backend"), service("backend")])
    )
    assert koguma("apply", "-f", str(file), "--address", plane.address).code == 0
    ended = koguma("delete", "-f", str(file), "--address", plane.address)
    assert (ended.code, complained(ended)) == (0, [])


def test_pruning_warns_as_deleting_does(plane, koguma):
    body = {"set": "shop", "prune": True}
    plane("POST", "/_apply", {**body, "objects": [service("backend")]})
    applied(plane, [to("MeshService", "backend", "t")])
    expected = nowhere(f'MeshTimeout "t" {WHERE} at spec.to[0].targetRef')
    words = ("apply", "-f", "-", "--set", "shop", "--prune", "--address", plane.address)
    given = yaml.safe_dump(service("other"))
    assert complained(koguma(*words, "--dry-run", given=given)) == expected
    assert complained(koguma(*words, given=given)) == expected


def test_switching_mtls_on_without_a_permission_warns_before_it_is_done(plane):
    assert plane("PUT", "/meshes/default?dryRun=All", SECURE).json["warnings"] == [
        f"mtls.enabledBackend: {NO_CALLS}"
    ]
    assert applied(plane, [SECURE, PERMISSION], "?dryRun=All") == []
    assert applied(plane, [SECURE, PERMISSION]) == []
    denies = {
        **PERMISSION,
        "spec": {"from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "Deny"}}]},
    }
    assert [text for text in applied(plane, [denies], "?dryRun=All") if "(KG016)" in text] == [
        NO_CALLS.replace(
            "there is no MeshTrafficPermission in it", "each MeshTrafficPermission in it only denies"
        )
    ]


def test_a_dry_run_leaves_nothing_behind_for_the_next_one(plane):
    first, second = timeout("a", idle="1s"), timeout("b", idle="2s")
    path = "/meshes/default/meshtimeouts"

    def ties(answer: Any) -> list[str]:
        return [
            text for text in answer.json.get("warnings", ()) if 'MeshTimeout "a"' in text and "KG010" in text
        ]

    tried = plane("PUT", f"{path}/a?dryRun=All", first)
    assert not ties(plane("PUT", f"{path}/b?dryRun=All", second)), "nothing of the first dry run is there"
    assert plane("PUT", f"{path}/a", first).json == tried.json
    assert ties(plane("PUT", f"{path}/b?dryRun=All", second)), "but what was written since then is"
    plane("DELETE", f"{path}/a?dryRun=All")
    tried = plane("PUT", f"{path}/b?dryRun=All", second)
    assert ties(tried)
    assert plane("PUT", f"{path}/b", second).json == tried.json
    plane("DELETE", f"{path}/a")
    assert not ties(plane("PUT", f"{path}/b?dryRun=All", {**second, "labels": {"team": "x"}}))
