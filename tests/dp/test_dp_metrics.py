"""Metrics that the agent merges: pages by family, their filter, and OpenTelemetry's format."""

import asyncio
import json
import math

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from koguma.dp import exposition, metrics, observability, otlp
from koguma.dp.exposition import MetricFamily, MetricsFilter
from koguma.dp.metrics import Application, MetricsAggregator, OpenTelemetryBackend
from koguma.envoy import schema
from koguma.model.redacted import Redacted
from koguma.runtime import background
from tests.traffic.collectors import REQUESTS, envoy

pytestmark = pytest.mark.slow

ENVOY = """\
# TYPE envoy_cluster_upstream_rq_total counter
envoy_cluster_upstream_rq_total{envoy_cluster_name="kri_msvc_a"} 5
# TYPE envoy_server_live gauge
envoy_server_live{} 1
# TYPE envoy_http_downstream_rq_time histogram
envoy_http_downstream_rq_time_bucket{le="0.5"} 1
envoy_http_downstream_rq_time_bucket{le="1"} 3
envoy_http_downstream_rq_time_bucket{le="+Inf"} 4
envoy_http_downstream_rq_time_sum{} 6.5
envoy_http_downstream_rq_time_count{} 4
"""
APPLICATION = """\
# HELP orders Orders, by kind.
# TYPE orders summary
orders{kind="a b",quantile="0.5"} 2
orders_sum{kind="a b"} 9
orders_count{kind="a b"} 4
untyped_thing 3 1700000000
# a comment
# TYPE envoy_server_live gauge
envoy_server_live 7
# EOF
no metric at all!
"""


def test_a_page_that_is_taken_apart_and_put_together_is_the_same() -> None:
    assert exposition.merged([exposition.families(ENVOY)]) == ENVOY


def test_a_family_of_two_pages_is_described_once() -> None:
    page = exposition.merged([exposition.families(ENVOY), exposition.families(APPLICATION)])
    lines = page.splitlines()
    assert lines.count("# TYPE envoy_server_live gauge") == 1
    at = lines.index("# TYPE envoy_server_live gauge")
    assert lines[at + 1 : at + 3] == ["envoy_server_live{} 1", "envoy_server_live 7"]
    assert "untyped_thing 3 1700000000" in lines
    assert "# HELP orders Orders, by kind." in lines
    assert not [line for line in lines if "EOF" in line or "comment" in line or "at all" in line]


LABELLED = (
    ("a 1", 'a{app="x"} 1'),
    ("a{} 1", 'a{app="x"} 1'),
    ('a{b="c"} 1', 'a{app="x",b="c"} 1'),
    ('a{b="} 1"} +Inf 5', 'a{app="x",b="} 1"} +Inf 5'),
)


@pytest.mark.parametrize(("line", "expected"), LABELLED)
def test_a_label_is_added_to_a_sample(line: str, expected: str) -> None:
    page = exposition.labelled(exposition.families(line), "app", "x")
    assert exposition.merged([page]) == f"{expected}\n"


def test_a_label_may_have_any_value() -> None:
    page: dict[str, MetricFamily] = {}
    exposition.add(page, "gauge", "up 1", ("name", 'a "b"\\\n'))
    assert exposition.merged([page]) == '# TYPE up gauge\nup{name="a \\"b\\"\\\\\\n"} 1\n'
    ((_, labels, value),) = otlp.samples(page["up"])
    assert (labels, value) == ((("name", 'a "b"\\\n'),), 1.0)


def selector(type_: str, match: str) -> dict[str, str]:
    return {"type": type_, "match": match}


BASIC = [{"name": "Basic"}]
NONE = [{"name": "None"}]
RQ, ODD = "envoy_cluster_upstream_rq_total", "envoy_cluster_lb_subsets_active"

# The profiles of a policy, and whether each of the two families is kept.
CHOICES = (
    (None, True, True),
    ({"appendProfiles": BASIC}, True, False),
    ({"appendProfiles": NONE}, False, False),
    ({"appendProfiles": [*NONE, *BASIC]}, True, False),
    ({"appendProfiles": [*BASIC, {"name": "All"}]}, True, True),
    ({"exclude": [selector("Prefix", "envoy_cluster_up")]}, False, True),
    ({"exclude": [selector("Contains", "_cluster_")]}, False, False),
    ({"exclude": [selector("Exact", "envoy_cluster")]}, True, True),
    ({"exclude": [selector("Regex", "rq_(total|time)$")]}, False, True),
    ({"exclude": [selector("Contains", "envoy")], "include": [selector("Exact", ODD)]}, False, True),
    ({"appendProfiles": NONE, "include": [selector("Prefix", "envoy_cluster_lb.")]}, False, False),
    ({"appendProfiles": NONE, "include": [selector("Regex", "envoy_cluster_lb.")]}, False, True),
)


@pytest.mark.parametrize(("profiles", "rq", "odd"), CHOICES)
def test_profiles_then_exclusions_then_inclusions_choose(profiles, rq: bool, odd: bool) -> None:  # noqa: FBT001
    chosen = exposition.profiles_filter(profiles)
    assert (chosen.keeps(RQ), chosen.keeps(ODD)) == (rq, odd)


def test_what_is_told_can_be_read_and_nothing_told_is_nothing_measured() -> None:
    configuration = {
        "applications": [{"name": "shop", "port": 8080, "path": "/m", "address": "fd00::1"}],
        "backends": [
            {"type": "Prometheus", "name": "default"},
            {
                "type": "OpenTelemetry",
                "name": "x",
                "openTelemetry": {"endpoint": "h:1", "refreshInterval": "5s"},
            },
        ],
        "sidecar": {"includeUnused": True},
        "extraLabels": {"mesh": "default"},
    }
    by_name = metrics.read(json.dumps({"observability": {"metrics": configuration}}))
    assert by_name.applications[0].url == "http://[fd00::1]:8080/m"
    assert by_name.collectors == (OpenTelemetryBackend("h:1", "5s"),)
    assert metrics.read("") == metrics.MetricsSettings()


@pytest.fixture
async def sockets(tmp_path, unused_tcp_port_factory):
    """An Envoy's admin interface and an application, both made up; what was asked stands in `asked`."""
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(text=ENVOY if request.path == "/stats/prometheus" else APPLICATION)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    port = unused_tcp_port_factory()
    await web.UnixSite(runner, str(tmp_path / "admin.sock")).start()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield tmp_path / "admin.sock", port, asked
    await runner.cleanup()


@pytest.fixture
def unused_tcp_port_factory():
    from tests.ports import free_port

    return free_port


async def test_an_application_that_does_not_answer_leaves_the_others_as_they_are(sockets) -> None:
    admin, port, asked = sockets
    gathered = MetricsAggregator(admin, lambda: [("koguma_lines_total", "there:1", 3)])
    applications = [{"name": "shop", "port": port}, {"port": 1}]
    gathered.configure(json.dumps({"observability": {"metrics": {"applications": applications}}}))
    page = exposition.merged(await gathered.pages())
    assert 'envoy_server_live{kuma_application="shop"} 7\n' in page
    assert 'koguma_application_up{kuma_application="shop"} 1\n' in page
    assert 'koguma_application_up{kuma_application="1"} 0\n' in page
    assert 'koguma_lines_total{address="there:1"} 3\n' in page
    assert asked == ["/stats/prometheus?usedonly", "/metrics"] or sorted(asked) == [
        "/metrics",
        "/stats/prometheus?usedonly",
    ]


async def test_unused_metrics_come_where_they_are_wanted(sockets) -> None:
    admin, _, asked = sockets
    gathered = MetricsAggregator(admin, list)
    gathered.configure(json.dumps({"observability": {"metrics": {"sidecar": {"includeUnused": True}}}}))
    await gathered.pages()
    assert asked == ["/stats/prometheus"]


async def test_what_cannot_be_read_changes_nothing(tmp_path) -> None:
    gathered = MetricsAggregator(tmp_path / "admin.sock", list)
    gathered.configure('{"observability": {"metrics": {"applications": [{"port": 1}]}}}')
    gathered.configure('{"observability": {"metrics": 5}}')
    assert gathered.settings.applications == (Application(1),)


def sent(*pages: str, **about: str):
    """A request as its receiver reads it."""
    message = schema.load(envoy()).message_class(REQUESTS["metrics"])
    request_ = otlp.request([exposition.families(page) for page in pages], about, 17)
    return message.FromString(message(**request_).SerializeToString())


def test_every_sort_of_metric_has_its_form_in_opentelemetry() -> None:
    (resource,) = sent(ENVOY, APPLICATION, service="web", zone="").resource_metrics
    assert {item.key: item.value.string_value for item in resource.resource.attributes} == {
        "service.name": "web",
        "kuma.service": "web",
    }
    by_name = {item.name: item for item in resource.scope_metrics[0].metrics}
    (requests,) = by_name["envoy_cluster_upstream_rq_total"].sum.data_points
    assert (requests.as_double, requests.time_unix_nano) == (5.0, 17)
    assert requests.attributes[0].value.string_value == "kri_msvc_a"
    (histogram,) = by_name["envoy_http_downstream_rq_time"].histogram.data_points
    assert list(histogram.explicit_bounds) == [0.5, 1.0]
    assert (list(histogram.bucket_counts), histogram.count, histogram.sum) == ([1, 2, 1], 4, 6.5)
    (summary,) = by_name["orders"].summary.data_points
    assert [(item.quantile, item.value) for item in summary.quantile_values] == [(0.5, 2.0)]
    assert by_name["orders"].description == "Orders, by kind."
    (untyped,) = by_name["untyped_thing"].gauge.data_points
    assert untyped.as_double == 3.0


def test_odd_values_are_sent_as_they_are_and_odd_lines_are_not() -> None:
    (resource,) = sent("a 1e3\nb +Inf\nc NaN\nd x\n").resource_metrics
    by_name = {item.name: item.gauge.data_points[0].as_double for item in resource.scope_metrics[0].metrics}
    assert (by_name["a"], by_name["b"]) == (1000.0, math.inf)
    assert math.isnan(by_name["c"])
    assert "d" not in by_name


@given(st.text(max_size=200))
def test_no_page_breaks_the_agent(text: str) -> None:
    page = exposition.families(text)
    exposition.labelled(page, "app", "x")
    exposition.merged([MetricsFilter().apply(page)])
    otlp.request([page], {}, 1)


async def test_metrics_are_pushed_until_the_settings_are_others(sockets) -> None:
    admin, port, asked = sockets
    gathered = MetricsAggregator(admin, list)
    pushing = asyncio.create_task(otlp.OtlpExporter(gathered, envoy()).run())
    collector = {"endpoint": f"http://127.0.0.1:{port}/v1/metrics", "refreshInterval": "1s"}
    backend = {"type": "OpenTelemetry", "name": "x", "openTelemetry": collector}
    gathered.configure(json.dumps({"observability": {"metrics": {"backends": [backend]}}}))
    async with asyncio.timeout(60):
        while asked.count("/v1/metrics") < 2:  # noqa: ASYNC110 - a server counts
            await asyncio.sleep(0.02)
    gathered.configure("")
    await asyncio.sleep(1.2)
    count = asked.count("/v1/metrics")
    await asyncio.sleep(1.2)
    assert asked.count("/v1/metrics") == count
    pushing.cancel()


@pytest.mark.expected_errors("metrics to http://127.0.0.1:1/")
async def test_metrics_that_cannot_be_made_are_told_and_tried_again(sockets, monkeypatch) -> None:
    """A mistake of ours in one page must not silence a proxy until its settings are others."""
    admin, _, _ = sockets
    monkeypatch.setattr(background, "RESTART_SECONDS_MIN", 0.001)
    gathered = MetricsAggregator(admin, list)
    attempts = asyncio.Semaphore(0)

    async def fails(_push: otlp.OtlpExporter) -> bytes:
        attempts.release()
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(otlp.OtlpExporter, "_body", fails)
    pushing = asyncio.create_task(otlp.OtlpExporter(gathered, envoy()).run())
    backend = {"type": "OpenTelemetry", "name": "x", "openTelemetry": {"endpoint": "http://127.0.0.1:1/"}}
    gathered.configure(json.dumps({"observability": {"metrics": {"backends": [backend]}}}))
    async with asyncio.timeout(60):
        for _ in range(3):
            await attempts.acquire()
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    assert pushing.cancelled()


ATTRIBUTES = (
    ({}, "service.name=web"),
    ({"OTEL_RESOURCE_ATTRIBUTES": "a=b"}, "service.name=web,a=b"),
    ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=own"}, "service.name=own"),
)


@pytest.mark.parametrize(("given_", "expected"), ATTRIBUTES)
def test_envoy_is_the_service_of_its_node_unless_somebody_said_more(given_, expected: str) -> None:
    bootstrap = Redacted(json.dumps({"node": {"id": "default.web-1", "cluster": "web"}}))
    by_name = observability.environment({"HOME": "/", **given_}, bootstrap)
    assert by_name == {"HOME": "/", "OTEL_RESOURCE_ATTRIBUTES": expected}
