"""What is read of answers of Envoy's admin interface; the files are answers of a real Envoy."""

import json
from pathlib import Path

import pytest

from koguma.envoy import cluster_hosts, stats
from koguma.envoy.latencies import Bucket, Histogram
from koguma.envoy.stats import Figures, UnreadableAnswer

ANSWERS = Path(__file__).parent / "admin_answers"
BACKEND = "kri_msvc_default_default__backend_http"
BACKEND_2 = "kri_dp_default_default__backend-2_http"


def answer(name: str) -> bytes:
    return (ANSWERS / f"{name}.json").read_bytes()


def test_stats_are_read_by_scope():
    sample = stats.read(answer("web-1-stats-after"))
    assert set(sample) == {("cluster", BACKEND), ("http", BACKEND)}
    figures = sample["cluster", BACKEND]
    assert (figures["upstream_rq_completed"], figures["upstream_rq_5xx"]) == (30, 3)
    assert figures["upstream_cx_connect_fail"] == 0, "what was never counted is left out of the answer"
    assert figures.latencies.count == 30


def test_quantiles_are_those_that_envoy_computes_itself():
    shown = json.loads(answer("web-1-stats-after"))["stats"][-1]["histograms"]
    details = next(each for each in shown["details"] if each["name"].startswith("cluster."))
    latencies = stats.read(answer("web-1-stats-after"))["cluster", BACKEND].latencies
    for percent, computed in zip(shown["supported_percentiles"], details["percentiles"], strict=True):
        ours = latencies.quantile(percent / 100)
        # A single value in a bucket is anywhere in it: Envoy takes the middle.
        assert ours == pytest.approx(computed["interval"], rel=0.05), percent


def test_the_histograms_of_several_proxies_add_up_to_one():
    fast, slow = Histogram((Bucket(0, 0, 99),)), Histogram((Bucket(0, 0, 1), Bucket(200, 10, 100)))
    both = Histogram.sum([fast, slow])
    assert both == Histogram((Bucket(0, 0, 100), Bucket(200, 10, 100)))
    assert both.quantile(0.5) == 0
    assert both.quantile(0.99) == pytest.approx(209.8)
    assert Histogram().quantile(0.5) is None


def test_obstacles_are_counters_and_gauges():
    figures = stats.read(answer("web-1-obstacles-after"))["cluster", BACKEND]
    assert figures.counters.keys() == {
        "circuit_breakers.default.cx_open",
        "circuit_breakers.default.rq_open",
        "circuit_breakers.default.rq_pending_open",
        "lb_healthy_panic",
        "upstream_cx_none_healthy",
        "upstream_cx_overflow",
        "upstream_rq_pending_overflow",
    }


def test_what_came_between_two_samples():
    before, after = (
        stats.read(answer(f"web-1-stats-{when}"))["cluster", BACKEND] for when in ("before", "after")
    )
    assert stats.increase(before, after)["upstream_rq_completed"] == 24
    assert stats.increase(after, before)["upstream_rq_completed"] == 6, "Envoy was started anew in between"
    assert stats.increase(Figures(), after)["upstream_rq_completed"] == 30


def test_an_ejected_endpoint_is_unhealthy():
    good, ejected = cluster_hosts.read(answer("web-1-clusters-after"))[BACKEND]
    assert (good.is_healthy, good["rq_success"], good["rq_error"]) == (True, 27, 3)
    assert (ejected.is_healthy, ejected.is_ejected, ejected["rq_error"]) == (False, True, 3)
    assert good.address.startswith("127.0.0.1:")


def test_an_application_that_does_not_listen_fails_connections():
    (application,) = cluster_hosts.read(answer("backend-2-clusters-after"))[BACKEND_2]
    assert application["cx_connect_fail"] == application["cx_total"] == 3
    assert application["cx_active"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"stats": 1}',
        b'{"stats": [{"name": 7}]}',
        b"{}",
        b"\xff",
        b'{"stats": [{"histograms": []}]}',
        b'{"stats": [{"value": 1e400}]}',
        b'{"stats": [], "x": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_refused(body):
    with pytest.raises(UnreadableAnswer):
        stats.read(body)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"cluster_statuses": 1}', b'{"cluster_statuses": [1]}'])
def test_what_is_no_answer_about_clusters_is_refused(body):
    with pytest.raises(UnreadableAnswer):
        cluster_hosts.read(body)


def test_numbers_that_no_envoy_counts_are_left_out():
    name = f"cluster.{BACKEND}.upstream_rq_5xx"
    for value in ("-1", "1.5", str(2**64), "9" * 4000, '"many"', "null"):
        assert stats.read(f'{{"stats": [{{"name": "{name}", "value": {value}}}]}}'.encode()) == {}
    buckets = [{"lower_bound": 1e300, "width": 0, "count": 1}, {"lower_bound": 0, "width": 0, "count": -5}]
    details = [{"name": f"cluster.{BACKEND}.upstream_rq_time", "intervals": buckets}]
    sample = stats.read(json.dumps({"stats": [{"histograms": {"details": details}}]}).encode())
    assert sample["cluster", BACKEND].latencies == Histogram()
    host = {"stats": [{"name": "rq_error", "value": "9" * 5000}, {"name": "rq_total", "value": "-1"}]}
    clusters = {"cluster_statuses": [{"name": BACKEND, "host_statuses": [host]}]}
    (read_host,) = cluster_hosts.read(json.dumps(clusters).encode())[BACKEND]
    assert read_host.counters == {}


def test_stats_of_others_are_left_out():
    text = (
        '{"stats": [{"name": "cluster._kuma_ads.upstream_rq_total", "value": 1}, {"name": "x", "value": 1}]}'
    )
    assert stats.read(text.encode()) == {}
    dotted = "cluster.kri_msvc_default___backend.v1.shop_http.upstream_rq_5xx"
    sample = stats.read(f'{{"stats": [{{"name": "{dotted}", "value": 2}}]}}'.encode())
    assert sample["cluster", "kri_msvc_default___backend.v1.shop_http"]["upstream_rq_5xx"] == 2
