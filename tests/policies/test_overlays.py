"""What policies lay over a proxy: each document in `cases/<policy>/overlay.yaml` is a case.

A case says the whole overlay, or, for permissions, what comes out for callers. Envoy itself reads them all.
"""

import re
from importlib import import_module
from typing import Any

import pytest

from koguma.core.build import logs, overlay_merge
from koguma.envoy import by_caller, filters
from koguma.model.overlay import InboundEntry, KumaDp, OverlayContext
from koguma.model.resource import Key
from tests.envoy import real_envoy
from tests.envoy.some_certificates import call_as, certificate, certificates, mutual, socket_of
from tests.policies import policy_cases
from tests.ports import free_port

KEYS = {"case", "side", "protocol", "conf", "ruled", "overlay", "callers", "where"}
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TCP_PROXY = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"


CASES = policy_cases.cases("overlay")


def ruled(entry: dict[str, Any]) -> InboundEntry:
    pairs = {name: tuple(entry[name]) for name in ("spiffe_id", "sni") if name in entry}
    tags = tuple((name, value) for name, value in entry.get("tags", ()))
    origin = Key("Kind", "default", "", "", "it")
    return InboundEntry(
        conf=entry["conf"], origin=origin, kri=entry.get("kri", ""), path="spec", tags=tags, **pairs
    )


def overlay(policy: str, document: dict[str, Any]) -> Any:
    hooks = import_module(f"koguma.policies.{policy}").KIND.policy.hooks
    given = {"mesh": "default", "zone": "east", "name": "kri_it", **document.get("where", {})}
    where = OverlayContext(document.get("protocol", "http"), **given)
    conf = document.get("conf", {})
    if document.get("side") == "whole":
        return hooks.whole(conf, where)
    if document.get("side") == "inbound":
        return hooks.inbound(conf, tuple(ruled(entry) for entry in document.get("ruled", ())), where)
    return (hooks.gateway if document.get("side") == "gateway" else hooks.outbound)(conf, where)


@pytest.mark.parametrize(("policy", "document"), [case for case in CASES if "overlay" in case.values[1]])
def test_a_configuration_means_what_its_case_says(policy: str, document) -> None:
    assert overlay(policy, document) == document["overlay"]
    assert set(document) <= KEYS


def fits(predicate: dict[str, Any], uris: str, name: str) -> bool:
    """Whether a caller fits a predicate of a matcher."""
    (how, inside), *_ = predicate.items()
    if how != "single_predicate":
        answers = [fits(each, uris, name) for each in inside["predicate"]]
        return all(answers) if how == "and_matcher" else any(answers)
    if inside["input"]["name"] == "envoy.matching.inputs.server_name":
        return inside["value_match"]["exact"] == name
    return re.fullmatch(inside["value_match"]["safe_regex"]["regex"], uris) is not None


def decision(matcher: dict[str, Any], uris: str, name: str) -> str:
    """What a matcher says to a caller, as Envoy would find it."""
    found = matcher.get("matcher_list", {}).get("matchers", ())
    first = next((each["on_match"] for each in found if fits(each["predicate"], uris, name)), None)
    action = (first or matcher["on_no_match"])["action"]["typed_config"]
    return f"{action['action']} {action['name']}"


@pytest.mark.parametrize(("policy", "document"), [case for case in CASES if "callers" in case.values[1]])
def test_a_caller_gets_what_its_case_says(policy: str, document) -> None:
    (part,) = overlay(policy, document).values()
    (config,) = part.values()
    for caller in document["callers"]:
        uris, name = ",".join(caller["is"]), caller.get("at", "")
        assert decision(config["matcher"], uris, name) == caller["gets"], caller
        if "planned" in caller:
            assert decision(config["shadow_matcher"], uris, name) == caller["planned"], caller


def test_a_policy_whose_name_makes_no_identifier_is_named_all_the_same() -> None:
    allow = {"conf": {"allow": [{}]}}
    made = overlay("mesh_traffic_permission", {"side": "inbound", "ruled": [allow]})
    on_no_match = made["extensions"]["envoy.filters.http.rbac"]["matcher"]["on_no_match"]
    assert on_no_match["action"]["typed_config"]["name"] == str(Key("Kind", "default", "", "", "it"))


def resources(index: int, policy: str, document: dict[str, Any], tls: Any) -> tuple[Any, Any]:
    """A listener and a cluster with the overlay of a case."""
    name = f"{policy}-{index}"
    skeleton = {
        "cluster": real_envoy.cluster(name, real_envoy.endpoint(1)),
        "http_options": {"explicit_http_config": {_options(document.get("protocol", "http")): {}}},
        "tcp": {"stat_prefix": name, "cluster": name},
        "hcm": {},
        "route_action": {"cluster": name},
        "tls": {"common_tls_context": tls},
        "upstream_tls": {},
    }
    parts = logs.with_logs(overlay_merge.with_overlays(skeleton, [overlay(policy, document)]))
    if document.get("protocol") == "tcp":
        chain = {"name": "proxy", "typed_config": {"@type": TCP_PROXY, **parts["tcp"]}}
    else:
        chain = manager(parts)
        parts["cluster"]["typed_extension_protocol_options"] = {
            HTTP_OPTIONS: {"@type": f"type.googleapis.com/{HTTP_OPTIONS}", **parts["http_options"]}
        }
    apart = parts.get("extensions", {}) if document.get("protocol") == "tcp" else {}
    given = {**parts.get("network_filters", {}), **apart}
    network = [{"name": each, "typed_config": config} for each, config in given.items()]
    cluster = {**parts["cluster"], **socket_of("UpstreamTlsContext", **parts["upstream_tls"])}
    secured = socket_of("DownstreamTlsContext", **parts["tls"])
    return real_envoy.listener(name, index + 1, *network, chain, **secured), cluster


def _options(protocol: str) -> str:
    return "http2_protocol_options" if protocol in ("http2", "grpc") else "http_protocol_options"


def manager(parts: Any) -> Any:
    given = {**parts.get("http_filters", {}), **parts.get("extensions", {})}
    on_routes = {filters.name_of(key): config for key, config in parts.get("on_routes", {}).items()}
    every = {"match": {"prefix": "/"}, "route": parts["route_action"]}
    routes = [
        {
            "match": {"prefix": "/", **each["match"]},
            "route": overlay_merge.merged(parts["route_action"], each["route_action"]),
        }
        for each in parts.get("callers", ())
    ]
    named = [{"name": name, "typed_config": config} for name, config in given.items()]
    host = {**everywhere(*routes, every)["virtual_hosts"][0], "typed_per_filter_config": on_routes}
    chain = (*named, *map(by_caller.disabled_filter, on_routes))
    return real_envoy.hcm({"name": "it", "virtual_hosts": [host]}, chain, **parts["hcm"])


@pytest.mark.slow
def test_envoy_takes_every_overlay() -> None:
    tls = certificates(certificate(("spiffe://default/it",), certificate(())))
    alone = [case for case in CASES if not added(*case.values)]
    made = [resources(index, *case.values, tls) for index, case in enumerate(alone)]
    assert real_envoy.validated([each[0] for each in made], [each[1] for each in made]) == ""


def added(policy: str, document: dict[str, Any]) -> dict[str, list[Any]]:
    """The whole resources in the overlay of a case: listeners, clusters."""
    made = overlay(policy, document)
    return {
        part: [{"name": name, **data} for name, data in made[part].items()]
        for part in ("listeners", "clusters")
        if part in made
    }


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "document"), [case for case in CASES if added(*case.values)])
def test_envoy_takes_an_overlay_that_adds_resources(policy: str, document) -> None:
    tls = certificates(certificate(("spiffe://default/it",), certificate(())))
    listener, cluster = resources(0, policy, document, tls)
    more = added(policy, document)
    for each in more.get("listeners", ()):
        each["filter_chains"][0].pop("transport_socket", None)  # names files and secrets that are not here
    listeners = [listener, *more.get("listeners", ())]
    assert real_envoy.validated(listeners, [cluster, *more["clusters"]]) == ""


@pytest.mark.slow
def test_two_proxies_meet_whatever_versions_and_ciphers_the_mesh_asks_for(tmp_path) -> None:
    cases = [case.values[1] for case in CASES if case.values[0] == "mesh_tls"]
    ports = [free_port() for _ in range(2 * len(cases))]
    skeleton = {
        "tls": {"common_tls_context": certificates(certificate(("spiffe://default/it",), certificate(())))},
        "upstream_tls": {},
    }
    listeners, clusters = [], []
    for document, front, back in zip(cases, ports[::2], ports[1::2], strict=True):
        parts = overlay_merge.with_overlays(skeleton, [overlay("mesh_tls", document)])
        answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
        secured = socket_of("DownstreamTlsContext", **parts["tls"])
        listeners.append(
            real_envoy.listener(f"back-{back}", back, real_envoy.hcm(everywhere(answer)), **secured)
        )
        there = {"match": {"prefix": "/"}, "route": {"cluster": f"to-{back}"}}
        listeners.append(real_envoy.listener(f"front-{front}", front, real_envoy.hcm(everywhere(there))))
        socket = socket_of("UpstreamTlsContext", **parts["upstream_tls"])
        clusters.append(real_envoy.cluster(f"to-{back}", real_envoy.endpoint(back), **socket))
    with real_envoy.envoy(listeners, clusters, tmp_path):
        got = {
            document["case"]: real_envoy.call(front).status
            for document, front in zip(cases, ports[::2], strict=True)
        }
    assert got == dict.fromkeys(got, 200)


def everywhere(*routes: Any) -> Any:
    return {"name": "it", "virtual_hosts": [{"name": "it", "domains": ["*"], "routes": list(routes)}]}


AGAIN = {"retriableResponseHeaders": [{"name": "x-again", "type": "Present"}]}

# A policy's configuration, headers of the call, and the status that comes out.
TRIED = (
    ("mesh_retry", {"http": {"numRetries": 3, "retryOn": ["503"]}}, {"x-fail": "2"}, 200),
    ("mesh_retry", {"http": {"numRetries": 1, "retryOn": ["503"]}}, {"x-fail": "2"}, 503),
    ("mesh_retry", {"http": {"numRetries": 0, "retryOn": ["503"]}}, {"x-fail": "1"}, 503),
    ("mesh_retry", {"http": {"numRetries": 3, "retryOn": ["503", "HttpMethodPost"]}}, {"x-fail": "2"}, 503),
    ("mesh_retry", {"http": {"numRetries": 3, "retryOn": ["503", "HttpMethodGet"]}}, {"x-fail": "2"}, 200),
    ("mesh_retry", {"http": {"numRetries": 3, "retryOn": ["Reset"]}}, {"x-fail": "2"}, 503),
    ("mesh_retry", {"http": {"numRetries": 3, "retryOn": ["Reset"], **AGAIN}}, {"x-fail": "2"}, 200),
    ("mesh_timeout", {"http": {"requestTimeout": "100ms"}}, {"x-slow": "0.5"}, 504),
    ("mesh_timeout", {"http": {"streamIdleTimeout": "100ms"}}, {"x-slow": "0.5"}, 504),
    ("mesh_timeout", {"http": {"requestTimeout": "0s", "streamIdleTimeout": "0s"}}, {"x-slow": "0.5"}, 200),
)


@pytest.mark.slow
def test_envoy_waits_and_tries_again_as_told(tmp_path) -> None:
    port = free_port()
    routes = [
        {
            "match": {"path": f"/{index}"},
            "route": {"cluster": "a", **overlay(policy, {"conf": conf})["route_action"]},
        }
        for index, (policy, conf, _, _) in enumerate(TRIED)
    ]
    with real_envoy.services("a") as services:
        clusters = [real_envoy.cluster("a", real_envoy.endpoint(services["a"].server_port))]
        listeners = [real_envoy.listener("it", port, real_envoy.hcm(everywhere(*routes)))]
        with real_envoy.envoy(listeners, clusters, tmp_path):
            got = [
                real_envoy.call(port, f"/{index}", headers=headers).status
                for index, (_, _, headers, _) in enumerate(TRIED)
            ]
    assert got == [expected for *_, expected in TRIED]


@pytest.mark.slow
def test_some_callers_have_limits_of_their_own(tmp_path) -> None:
    port = free_port()
    entry = {"conf": {"http": {"requestTimeout": "100ms"}}, "spiffe_id": ["Exact", "spiffe://default/hasty"]}
    made = overlay("mesh_timeout", {"side": "inbound", "ruled": [entry]})
    ca = certificate(())
    with real_envoy.services("a") as services:
        clusters = [real_envoy.cluster("a", real_envoy.endpoint(services["a"].server_port))]
        chain = manager({"hcm": {}, "route_action": {"cluster": "a"}, **made})
        listeners = [real_envoy.listener("it", port, chain, **mutual(ca))]
        with real_envoy.envoy(listeners, clusters, tmp_path):
            hasty = certificate(("spiffe://default/hasty", "kuma://team/a"), ca)
            patient = certificate(("spiffe://default/patient",), ca)
            got = [call_as(each, port, tmp_path, **{"x-slow": "0.5"}) for each in (hasty, patient)]
    assert [each.status for each in got if each] == [504, 200]


def test_every_policy_here_has_a_hook() -> None:
    for policy in {case.values[0] for case in CASES}:
        hooks = import_module(f"koguma.policies.{policy}").KIND.policy.hooks
        assert hooks.inbound or hooks.outbound or hooks.whole


def metrics_of_kumas_agent(backend: dict[str, Any], agent: KumaDp) -> Any:
    where = OverlayContext(
        "", "default", "east", "kri_it", address="127.0.0.1", workdir="/run", kuma_dp=agent
    )
    hooks = import_module("koguma.policies.mesh_metric").KIND.policy.hooks
    return hooks.whole({"backends": [backend]}, where)


def test_kumas_agent_brings_the_certificate_for_who_scrapes():
    backend = {"type": "Prometheus", "prometheus": {"tls": {"mode": "ProvidedTLS"}}}
    (listener,) = metrics_of_kumas_agent(backend, KumaDp("/run/mh.sock", "/c.pem", "/k.pem"))[
        "listeners"
    ].values()
    tls = listener["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    files = {"certificate_chain": {"filename": "/c.pem"}, "private_key": {"filename": "/k.pem"}}
    assert tls["tls_certificates"] == [files]
    without = metrics_of_kumas_agent(backend, KumaDp("/run/mh.sock"))
    assert "--metrics-cert-path" in without["problems"]["port 5670"]
    assert "listeners" not in without


def test_kumas_agent_sends_metrics_over_grpc_only():
    backend = {"type": "OpenTelemetry", "openTelemetry": {"endpoint": "http://collector:4318"}}
    found = metrics_of_kumas_agent(backend, KumaDp("/run/mh.sock"))
    assert found["problems"] == {
        "backends[0]": "kuma-dp sends metrics over gRPC only; name a collector for that"
    }
    assert "listeners" not in found
