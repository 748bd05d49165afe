"""What Envoys get: each file in `cases/build` is a case, objects above, what comes out for a proxy below.

Below stand the names of all that the proxy gets and, by type and name, what is to be found at some paths of a
resource; nothing (null) where a path must not be there. `KOGUMA_GOLDEN=rewrite` writes what is there now.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from building import CASES, Case, at, bodies, decoded, objects, of, plain, proxies, take

from koguma.core import pipeline
from koguma.core.build import snapshot
from koguma.core.build.skeletons import NOWHERE
from koguma.envoy.snapshot import TYPES
from koguma.model import documents

IDS = [case.path.stem for case in CASES]


def found(case: Case, name: str, expected: Any) -> Any:
    """What there is at the places that a case looks at."""
    made = of(case.database(), name)
    resources = plain(made)
    shown: dict[str, Any] = {
        "names": {type_: list(resources[type_]) for type_ in TYPES if resources[type_]},
    }
    if made.failures:
        shown["failures"] = [f"{each.type} {each.name}: {each.text}" for each in made.failures]
    for type_ in TYPES:
        looked_at = expected.get(type_) or {}
        if looked_at:
            shown[type_] = {
                resource: {path: at(resources[type_].get(resource), path) for path in paths}
                for resource, paths in looked_at.items()
            }
    return shown


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - no `&id001`: people read this
        return True


def written(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=108, default_flow_style=None)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_proxy_gets_what_its_case_says(case: Case):
    assert case.expected
    results = {}
    for name, text in case.expected.items():
        (expected,) = [each.value for each in documents.load(text)] or [{}]
        results[name] = expected, found(case, name, expected)
    differs = any(expected != made for expected, made in results.values())
    if os.environ.get("KOGUMA_GOLDEN") == "rewrite" and differs:
        nodes = [f"---- node {name}\n{text.rstrip()}\n" for name, text in case.nodes.items()]
        sections = [f"---- {name}\n{written(made)}" for name, (_, made) in results.items()]
        case.path.write_text("".join([case.objects.rstrip() + "\n", *nodes, *sections]))
        return
    for name, (expected, made) in results.items():
        assert made == expected, name


def referred(data: Any) -> Iterator[tuple[str, str]]:
    """Everything that plain data of a resource refers to, by type and name."""
    if isinstance(data, list):
        for each in data:
            yield from referred(each)
    if not isinstance(data, dict):
        return
    if data.get("type") == "EDS":
        yield "endpoints", data["name"]
    for field, value in data.items():
        match field, value:
            case "rds", {"route_config_name": name}:
                yield "routes", name
            case (("sds_config" | "config_discovery"), _):
                yield "secret" if field == "sds_config" else "extension", data["name"]
            case "cluster", str():
                yield "cluster", value
            case "clusters", list():
                yield from (("cluster", each["name"]) for each in value)
        yield from referred(value)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_a_piece_refers_to_is_there_and_it_says_that_it_needs_it(case: Case):
    db = case.database()
    for key in proxies(db):
        made = snapshot.of(db, key)
        missing = {each.id for each in made.failures}
        for resource in made:
            assert set(referred(decoded(resource))) - {("cluster", NOWHERE)} <= set(resource.needs), resource
            here = [id_ for id_ in resource.needs if id_[0] != "secret"]
            assert all(made.get(id_) or id_ in missing for id_ in here), resource


# Listeners whose ports another process may share, and why that is harmless.
SHARED_PORTS = {
    "_kuma_dns": "Envoy takes UDP for several workers only with SO_REUSEPORT; one per machine asks for it",
    "OUTBOUND": "Envoy changes the addresses of a listener only with SO_REUSEPORT",
}


def binds_ports(listener: dict[str, Any]) -> bool:
    return "socket_address" in listener["address"] and listener.get("bind_to_port", True)


def sharing(listener: dict[str, Any]) -> str:
    """The reason in the list above, for a listener that shares its ports; empty where there is none."""
    calls_others = listener["name"].startswith("kri_") and listener["traffic_direction"] == "OUTBOUND"
    return SHARED_PORTS.get("OUTBOUND" if calls_others else listener["name"], "")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_listener_shares_its_port_with_another_process_without_a_reason(case: Case):
    db = case.database()
    for key in proxies(db):
        resources = [decoded(resource) for resource in snapshot.of(db, key) if resource.type == "listener"]
        for listener in filter(binds_ports, resources):
            is_shared = listener.get("enable_reuse_port") is not False
            assert is_shared == bool(sharing(listener)), listener["name"]


def test_the_cases_have_listeners_of_every_sort():
    names = {
        resource.name
        for db in (case.database() for case in CASES)
        for key in proxies(db)
        for resource in snapshot.of(db, key)
        if resource.type == "listener" and binds_ports(decoded(resource))
    }
    for part in (
        "kri_dp_",
        "kri_msvc_",
        "_kuma_dns",
        "_kuma_envoy_admin",
        "_kuma_metrics_",
        "_kuma_passthrough_inbound_",
        "_kuma_passthrough_outbound_",
    ):
        assert any(name.startswith(part) for name in names), part


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_order_of_arrival_leaves_no_trace_in_bytes(case: Case):
    there = list(objects(case.objects))
    db, late = case.database(), case.database()
    for resource in there:
        pipeline.take(late, [], [resource.key])
    for resource in reversed(there):
        take(late, resource)
        snapshot.of(late, there[1].key)
    for key in proxies(db):
        assert bodies(snapshot.of(late, key)) == bodies(snapshot.of(db, key))
