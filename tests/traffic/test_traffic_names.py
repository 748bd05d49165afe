"""By which names real Envoys know what they have, and what their metrics can be asked for."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from koguma.model import kri
from tests import build
from tests.http_client import call
from tests.live_mesh import Sidecar
from tests.traffic.conftest import SharedMesh
from tests.waiting import until

pytestmark = pytest.mark.slow

OUT = "default_default_"
BACKEND, DB = f"kri_msvc_{OUT}_backend_http", f"kri_msvc_{OUT}_db_tcp"
OTHER, OUTSIDE = f"kri_msvc_{OUT}_other_http", f"kri_extsvc_{OUT}_outside_80"
DEAF, CLOSED = f"kri_extsvc_{OUT}_deaf_80", f"kri_extsvc_{OUT}_closed_5432"
EVERYWHERE = "kri_mzsvc_default___everywhere_http"  # of all zones
IN_BACKEND, IN_DB = f"kri_dp_{OUT}_node.1_backend", f"kri_dp_{OUT}_node.1_db"
ROUTE = f"kri_mhttpr_{OUT}_route.with.dots_"
NO_ROUTE = "_kuma_route_default"

HTTP = {BACKEND, OTHER, OUTSIDE, DEAF, EVERYWHERE}
CALLED = {*HTTP, DB, CLOSED}


def dotted_route() -> Mapping[str, Any]:
    return build.http_route("route.with.dots", build.http_rule("/dotted"))


def configuration(of: Sidecar) -> Mapping[str, Any]:
    """All that an Envoy has, by section: clusters, endpoints, listeners, routes, secrets."""
    dump = json.loads(of.admin("/config_dump?include_eds"))["configs"]
    return {part["@type"].rpartition(".")[2].removesuffix("ConfigDump"): part for part in dump}


def values_of(value: Any, *keys: str) -> Iterator[str]:
    """Every text under one of these keys, however deep."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key in keys and isinstance(inner, str):
            yield inner
        elif isinstance(inner, dict | list):
            yield from values_of(inner, *keys)


def listeners(of: Sidecar) -> set[str]:
    return {each["name"] for each in json.loads(of.admin("/listeners?format=json"))["listener_statuses"]}


def clusters(of: Sidecar) -> set[str]:
    return {each["name"] for each in json.loads(of.admin("/clusters?format=json"))["cluster_statuses"]}


def route_configurations(of: Sidecar) -> list[Mapping[str, Any]]:
    return [each["route_config"] for each in configuration(of)["Routes"].get("dynamic_route_configs", ())]


def test_what_has_a_resource_is_named_by_its_identifier(shared: SharedMesh):
    shared.apply_only(dotted_route())
    web, node = shared.web, shared.nodes["v1"]
    assert listeners(web) == {*CALLED, "_kuma_envoy_admin_loopback", "_kuma_dynamicconfig"}
    assert clusters(web) == {*CALLED, "_kuma_ads", "_kuma_envoy_admin", "_kuma_readiness"}
    assert listeners(node) == {IN_BACKEND, IN_DB, "_kuma_dynamicconfig"}
    assert clusters(node) == {IN_BACKEND, IN_DB, "_kuma_ads"}
    configs = {each["name"]: each for each in route_configurations(web)}
    hosts = {name: [host["name"] for host in each["virtual_hosts"]] for name, each in configs.items()}
    assert hosts == {name: [name] for name in (*HTTP, "_kuma_dynamicconfig")}
    assert {each["name"] for each in route_configurations(node)} == {IN_BACKEND, "_kuma_dynamicconfig"}
    # One route for the path itself, one for what is below it, and the one for everything else.
    names = [each["name"] for each in configs[BACKEND]["virtual_hosts"][0]["routes"]]
    assert names == [ROUTE, ROUTE, NO_ROUTE]


def is_ours(name: str) -> bool:
    """Whether a name is an identifier, or that of something internal."""
    return ":" not in name and (kri.is_kri(name) or name.startswith("_kuma_"))


def test_statistics_have_the_names_of_what_they_count(shared: SharedMesh):
    shared.apply_only(dotted_route())
    for sidecar in (shared.web, *shared.nodes.values()):
        config = configuration(sidecar)
        for section in ("Listeners", "Clusters", "Routes"):
            used = set(values_of(config[section], "stat_prefix", "alt_stat_name"))
            assert {name for name in used if not is_ours(name)} == set()
            named = {name for name in values_of(config[section], "name") if is_ours(name)}
            assert used <= named, section


def test_only_secrets_have_names_with_colons(shared: SharedMesh):
    original = shared.mesh.request("GET", "/meshes/default").json
    backend = {"name": "ca-1", "type": "builtin"}
    # Not `has`: what a test wrote is deleted after it, and this is the mesh.
    shared.mesh.apply_and_wait({**original, "mtls": {"enabledBackend": "ca-1", "backends": [backend]}})
    try:
        for sidecar in (shared.web, *shared.nodes.values()):
            config = configuration(sidecar)
            secrets = config.pop("Secrets")["dynamic_active_secrets"]
            names = {each["name"] for each in secrets if not each["name"].startswith("_kuma_")}
            assert names == {"identity_cert:secret:default", "mesh_ca:secret:default"}
            config.pop("Bootstrap")
            others = {name for name in values_of(config, "name", "cluster_name", "cluster") if ":" in name}
            assert others - {":method"} <= names  # which is a header that routes look at
    finally:
        shared.mesh.apply_and_wait(original)
        until(lambda: shared.get("backend").status == 200, "calls go on without mTLS")


SAMPLE = re.compile(r"(?P<metric>\w+)\{(?P<labels>.*)\} (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def metrics(of: Sidecar) -> Iterator[tuple[str, dict[str, str], float]]:
    """What Prometheus would read."""
    for line in of.admin("/stats/prometheus?usedonly").splitlines():
        if sample := SAMPLE.fullmatch(line):
            yield sample["metric"], dict(LABEL.findall(sample["labels"])), float(sample["value"])


def counted(of: Sidecar, metric: str, **labels: str) -> float:
    """The sum of a metric over all series with these labels."""
    expected = {f"envoy_{name}": value for name, value in labels.items()}.items()
    return sum(value for name, has, value in metrics(of) if name == metric and expected <= has.items())


COUNTED_BY_WEB = (
    ("envoy_cluster_upstream_rq_total", {"cluster_name": BACKEND}, 5),
    ("envoy_cluster_upstream_rq_total", {"cluster_name": OUTSIDE}, 1),
    ("envoy_cluster_upstream_rq_total", {"cluster_name": EVERYWHERE}, 1),
    ("envoy_cluster_upstream_cx_total", {"cluster_name": DB}, 2),
    ("envoy_listener_downstream_cx_total", {"listener_address": BACKEND}, 5),
    ("envoy_listener_downstream_cx_total", {"listener_address": DB}, 2),
    ("envoy_http_downstream_rq_total", {"http_conn_manager_prefix": BACKEND}, 5),
    ("envoy_tcp_downstream_cx_total", {"tcp_prefix": DB}, 2),
    ("envoy_vhost_route_upstream_rq_total", {"virtual_host": BACKEND, "route": ROUTE}, 3),
    ("envoy_vhost_route_upstream_rq_total", {"virtual_host": BACKEND, "route": NO_ROUTE}, 2),
    ("envoy_vhost_route_upstream_rq_total", {"virtual_host": OUTSIDE, "route": NO_ROUTE}, 1),
)


def test_each_metric_counts_under_the_identifier_even_where_names_have_dots(shared: SharedMesh):
    shared.apply_only(dotted_route())
    before = [counted(shared.web, metric, **labels) for metric, labels, _ in COUNTED_BY_WEB]
    served = "envoy_cluster_upstream_rq_total", {"cluster_name": IN_BACKEND}
    greeted = "envoy_tcp_downstream_cx_total", {"tcp_prefix": IN_DB}
    first = [counted(shared.nodes["v1"], metric, **labels) for metric, labels in (served, greeted)]
    answers = [shared.get("backend", path) for path in ("/dotted", "/dotted/x", "/dotted", "/", "/other")]
    names = [shared.greeted("db") for _ in range(2)]
    assert shared.get("outside").status == shared.get("everywhere").status == 200
    after = [counted(shared.web, metric, **labels) for metric, labels, _ in COUNTED_BY_WEB]
    counts = {
        (metric, *labels.values()): now - then
        for (metric, labels, _), then, now in zip(COUNTED_BY_WEB, before, after, strict=True)
    }
    assert counts == {(metric, *labels.values()): expected for metric, labels, expected in COUNTED_BY_WEB}
    last = [counted(shared.nodes["v1"], metric, **labels) for metric, labels in (served, greeted)]
    by_first = sum(answer.json["name"] == "backend-v1" for answer in answers)
    assert [b - a for a, b in zip(first, last, strict=True)] == [by_first, names.count("db-v1")]


NAMES = (
    "cluster_name",
    "listener_address",
    "http_conn_manager_prefix",
    "tcp_prefix",
    "rds_route_config",
    "virtual_host",
    "route",
)
ENVOYS_OWN = ("admin", "async-client")


def test_no_metric_has_a_piece_of_a_name_in_its_own_name(shared: SharedMesh):
    shared.apply_only(dotted_route())
    assert shared.get("backend", "/dotted").status == 200
    for sidecar in (shared.web, *shared.nodes.values()):
        samples = list(metrics(sidecar))
        values = {has[f"envoy_{name}"] for _, has, _ in samples for name in NAMES if f"envoy_{name}" in has}
        assert {value for value in values if not is_ours(value)} <= {*ENVOYS_OWN}
        pieces = re.compile(r"kri_|_dots|_1_(backend|db)|default__")
        assert [metric for metric, *_ in samples if pieces.search(metric)] == []


def test_a_query_by_kind_selects_what_it_says(shared: SharedMesh):
    """`sum by (envoy_cluster_name) (envoy_cluster_upstream_rq_total{envoy_cluster_name=~"kri_msvc_.*"})`."""
    for name in ("backend", "other", "outside", "everywhere"):
        assert shared.get(name).status == 200
    shared.greeted("db")
    totals = [has for metric, has, _ in metrics(shared.web) if metric == "envoy_cluster_upstream_rq_total"]
    selected = {has["envoy_cluster_name"] for has in totals}
    assert {name for name in selected if re.fullmatch("kri_msvc_.*", name)} == {BACKEND, OTHER, DB}
    assert {OUTSIDE} <= {name for name in selected if re.fullmatch("kri_extsvc_.*", name)}
    assert {name for name in selected if re.fullmatch("kri_.*_backend_.*", name)} == {BACKEND}


def test_the_admin_port_answers_for_the_proxy(shared: SharedMesh):
    assert call(shared.readiness_port, path="/ready").text == "READY"
    for path in ("/stats", "/stats/prometheus?usedonly", "/clusters", "/listeners?format=json", "/certs"):
        assert call(shared.readiness_port, path=path).status == 200, path
    assert call(shared.readiness_port, path="/server_info").json["state"] == "LIVE"
    dump = call(shared.readiness_port, path="/config_dump?resource=dynamic_listeners")
    assert "_kuma_envoy_admin_loopback" in {each["name"] for each in dump.json["configs"]}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/quitquitquit"),
        ("GET", "/quitquitquit"),
        ("POST", "/healthcheck/fail"),
        ("POST", "/drain_listeners"),
        ("POST", "/stats"),
        ("POST", "/logging?level=trace"),
        ("GET", "/config_dump"),  # the bootstrap in it has the token
        ("GET", "/config_dump?mask=bootstrap"),
        ("GET", "/config_dump?resource=bootstrap"),
        ("GET", "/config_dump?resource=static_clusters&resource=dynamic_listeners"),
        ("GET", "/stats/../quitquitquit"),
        ("GET", "/"),
    ],
)
def test_the_admin_port_changes_nothing_and_shows_no_token(shared: SharedMesh, method, path):
    answer = call(shared.readiness_port, method, path)
    assert answer.status == 403
    assert answer.text.startswith("this port answers GET of /ready, /certs, ")


def test_the_admin_port_answers_to_no_other_host_name(shared: SharedMesh):
    assert call(shared.readiness_port, path="/stats", Host="attacker.example").status == 404
    assert call(shared.readiness_port, path="/ready", Host="web-1.example").status == 200
