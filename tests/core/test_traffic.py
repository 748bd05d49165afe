"""Rates of services and proxies, from two samples of stats."""

from pathlib import Path

import pytest

from koguma.core import traffic
from koguma.core.traffic import ProxySamples, Rates
from koguma.envoy import stats
from koguma.envoy.latencies import Bucket, Histogram
from koguma.envoy.stats import Figures

ANSWERS = Path(__file__).parent.parent / "envoy" / "admin_answers"
BACKEND = "kri_msvc_default_default__backend_http"
ADMIN = "kri_msvc_default_default__backend_admin"
NO_LATENCIES = Histogram()
WEB = "kri_dp_default_default__web-1_http"


def samples(name: str, seconds: float = 2.0) -> ProxySamples:
    before, after = (
        stats.read((ANSWERS / f"{name}-stats-{when}.json").read_bytes()) for when in ("before", "after")
    )
    return ProxySamples(before, after, seconds)


def counted(
    kri: str = BACKEND, sort: str = "cluster", *, latencies: Histogram = NO_LATENCIES, **counters: int
):
    return ProxySamples({}, {(sort, kri): Figures(counters, latencies)}, 1.0)


def test_a_service_as_a_real_envoy_counts_it():
    (service,) = traffic.of_services([samples("web-1")])
    assert service.kri == "kri_msvc_default_default__backend_"
    assert service.n_callers == 1
    assert (service.rates.requests, service.rates.errors) == (12.0, 1.5)
    assert service.rates.p50_ms == 0
    assert service.rates.p99_ms == pytest.approx(205, rel=0.05)


def test_a_proxy_whose_application_does_not_listen():
    shown = traffic.of_proxy(samples("backend-2"))
    assert shown.called == Rates()
    first = traffic.of_proxy(ProxySamples({}, samples("backend-2").after, 1.0)).served
    assert (first.requests, first.errors, first.connect_failures) == (3, 3, 3)


def test_callers_and_ports_of_a_service_add_up():
    latencies = Histogram((Bucket(10, 0, 1),))
    proxies = [
        counted(upstream_rq_completed=10, upstream_rq_5xx=1, latencies=latencies),
        counted(ADMIN, upstream_rq_completed=5, upstream_rq_rx_reset=2, latencies=latencies),
        counted(upstream_cx_total=4, upstream_cx_connect_fail=3),
        counted(),
    ]
    (service,) = traffic.of_services(proxies)
    assert service.n_callers == 3, "who has it and does not call it is no caller"
    assert service.rates == Rates(15, 1, 4, 3, 2, 10, 10)


def test_the_busiest_service_comes_first():
    rows = traffic.of_services(
        [
            counted("kri_extsvc_default_default__a_80", upstream_rq_completed=1),
            counted("kri_mzsvc_default___b_80", upstream_rq_completed=7),
            counted("kri_msvc_default_default__c_80", upstream_cx_total=3),
        ]
    )
    assert [row.kri.split("_")[5] for row in rows] == ["b", "a", "c"]


def test_what_a_proxy_serves_and_calls():
    both = {
        **counted(WEB, "http", downstream_rq_total=8, downstream_rq_5xx=2).after,
        **counted(upstream_rq_completed=3).after,
    }
    shown = traffic.of_proxy(ProxySamples({}, both, 2.0))
    assert (shown.served.requests, shown.served.errors, shown.called.requests) == (4, 1, 1.5)
    opaque = traffic.of_proxy(counted(WEB, "tcp", downstream_cx_total=6))
    assert (opaque.served.connections, opaque.served.requests) == (6, 0)


def test_inbounds_and_passthrough_are_no_services():
    assert traffic.of_services([counted(WEB, upstream_rq_completed=4), counted(sort="http")]) == ()
