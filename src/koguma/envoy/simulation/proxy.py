"""Proxy: a request arrives at a listener of an Envoy; what becomes of it there. Start reading here.

A request may have several endings, each with its share: weights, fractions, faults and endpoints split it.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy import snapshot
from koguma.envoy.simulation import (
    balancing,
    filter_chains,
    forwarding,
    http_filters,
    matchers,
    request_paths,
    routing,
)
from koguma.envoy.simulation.ending import EndingKind, ProxyEnding, Side
from koguma.envoy.simulation.forwarding import RouteEffects, WeightedTarget
from koguma.envoy.simulation.http_filters import FilterContext, FilterPass, Resources
from koguma.envoy.simulation.matchers import MatchInputs
from koguma.envoy.simulation.request_paths import PathProblem
from koguma.envoy.simulation.traffic import (
    ClientConnection,
    PeerIdentity,
    SimulatedRequest,
    Undecidable,
)
from koguma.model.schema import Json

_NETWORK: Final = "envoy.extensions.filters.network."
_HCM: Final = f"{_NETWORK}http_connection_manager.v3.HttpConnectionManager"
_TCP: Final = f"{_NETWORK}tcp_proxy.v3.TcpProxy"
_RBAC: Final = f"{_NETWORK}rbac.v3.RBAC"
_LIMIT: Final = f"{_NETWORK}local_ratelimit.v3.LocalRateLimit"
_HARMLESS: Final = (f"{_NETWORK}set_filter_state.v3.Config",)
_CLOSING: Final = (f"{_NETWORK}direct_response.v3.Config",)
_CONNECT_TIMEOUT: Final = "5s"  # Envoy's own
_ALL: Final = Fraction(1)
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503


class SimulatedProxy(msgspec.Struct, frozen=True):
    """An Envoy: its resources, and the certificate that it shows."""

    resources: Resources
    identity: PeerIdentity | None = None

    def arrive(
        self, listener: str, connection: ClientConnection, request: SimulatedRequest | None
    ) -> list[ProxyEnding]:
        """What becomes of a request, or of a connection without one, that arrives at a listener."""
        data = self.resources(snapshot.LISTENER, listener)
        if data is None:
            return [ProxyEnding(_ALL, "no listener", listener)]
        try:
            chain = filter_chains.chosen(data, connection)
            if chain is None:
                return [ProxyEnding(_ALL, "no filter chain", listener)]
            problem = filter_chains.tls_problem(chain, connection, self.identity)
            if problem:
                return [ProxyEnding(_ALL, "tls error", listener, problem)]
            if not chain.get("transport_socket"):
                connection = msgspec.structs.replace(connection, identity=None)
            return list(self._through(chain, listener, connection, request))
        except Undecidable as undecidable:
            return [ProxyEnding(_ALL, "undecided", listener, str(undecidable))]

    def _through(
        self, chain: Json, listener: str, connection: ClientConnection, request: SimulatedRequest | None
    ) -> Iterator[ProxyEnding]:
        """What the network filters of a chain do."""
        side = Side()
        for each in chain.get("filters") or ():
            config = self._network_config(each)
            match matchers.type_of(config):
                case name if name == _HCM:
                    if request is None:
                        raise Undecidable(f'the listener "{listener}" reads HTTP, and no request is given')
                    yield from self._requests(config, connection, request)
                    return
                case name if name == _TCP:
                    yield from self._connections(config, connection, request, side)
                    return
                case name if name == _RBAC:
                    decision = http_filters.decided(config, MatchInputs(connection))
                    if not decision.is_allowed:
                        yield ProxyEnding(_ALL, "denied", decision.by, "the connection is closed")
                        return
                    side = side.joined(decision.side)
                case name if name == _LIMIT:
                    side = side.joined(Side(limits=_connection_limit(config)))
                case name if name in _HARMLESS:
                    continue
                case name if name in _CLOSING:
                    yield ProxyEnding(_ALL, "answered", listener, "the connection is closed")
                    return
                case other:
                    raise Undecidable(f'the network filter "{each["name"]}" ({other}) may do anything')
        yield ProxyEnding(_ALL, "no filter chain", listener, "its filter chain has no filter that sends on")

    def _network_config(self, filter_: Json) -> Json:
        if "config_discovery" not in filter_:
            return filter_.get("typed_config") or {}
        sent_apart = self.resources(snapshot.EXTENSION, filter_["name"])
        if sent_apart is None:
            raise Undecidable(f'the filter "{filter_["name"]}" has no configuration yet')
        return sent_apart["typed_config"]

    def _requests(
        self, hcm: Json, connection: ClientConnection, request: SimulatedRequest
    ) -> Iterator[ProxyEnding]:
        if not request.scheme:
            request = msgspec.structs.replace(request, scheme="https" if connection.is_tls else "http")
        forwards = hcm.get("forward_client_cert_details", "SANITIZE") == "SANITIZE_SET"
        normal = request_paths.normalized(hcm, request.certified(connection.identity if forwards else None))
        if isinstance(normal, PathProblem):
            kind: EndingKind = "redirected" if normal.location else "answered"
            yield ProxyEnding(_ALL, kind, hcm["stat_prefix"], normal.text, normal.status, normal.location)
            return
        inputs, filters = MatchInputs(connection, normal), hcm.get("http_filters") or ()
        config = self._route_config(hcm)
        state = http_filters.state(filters, inputs)
        for choice in routing.choices(config, normal, state, has_tls=connection.is_tls):
            route, host = choice.route or {}, choice.host or {}
            targets = forwarding.targets(route["route"], normal) if "route" in route else [None]
            for target in targets:
                weighted = [target.config] if target and target.config else []
                levels = [*weighted, route, host, config]
                context = FilterContext(inputs, normal, levels, self.resources)
                share = choice.share * (target.share if target else 1)
                for verdict in http_filters.walk(filters, context):
                    scaled = msgspec.structs.replace(verdict, share=verdict.share * share)
                    if isinstance(scaled, FilterPass):
                        yield from self._routed(route, levels, normal, target, scaled)
                    else:
                        yield msgspec.structs.replace(scaled, route=route.get("name", ""))

    def _route_config(self, hcm: Json) -> Json:
        if "route_config" in hcm:
            return hcm["route_config"]
        name = (hcm.get("rds") or {}).get("route_config_name")
        config = self.resources(snapshot.ROUTES, name) if name else None
        if config is None:
            raise Undecidable(f'the routes "{name or "scoped routes"}" are not known')
        return config

    def _routed(
        self,
        route: Json,
        levels: Sequence[Json],
        request: SimulatedRequest,
        target: WeightedTarget | None,
        passed: FilterPass,
    ) -> Iterator[ProxyEnding]:
        """What the router does with the share of requests that filters let through."""
        share, name = passed.share, route.get("name", "")
        side = passed.side.joined(Side(response_headers=tuple(forwarding.response_headers(levels))))
        if not route:
            host = levels[-2].get("name", "") if levels else ""
            text = "no route matches" if host else f'no virtual host is for "{request.host}"'
            yield ProxyEnding(share, "no route", host, text, _NOT_FOUND, side=passed.side)
        elif "redirect" in route:
            status, location = forwarding.redirect(route, request)
            yield ProxyEnding(
                share, "redirected", name, status=status, location=location, route=name, side=side
            )
        elif "direct_response" in route:
            answer = route["direct_response"]
            text = str((answer.get("body") or {}).get("inline_string", "")).strip()
            yield ProxyEnding(share, "answered", name, text, answer["status"], route=name, side=side)
        elif target is not None:
            action = route["route"]
            sent = forwarding.sent(action, route, levels, forwarding.mutated(request, passed.mutations))
            effects = forwarding.effects(action)
            yield from self._to_cluster(share, name, target, sent, effects, side)
        else:
            raise Undecidable(f'the route "{name}" neither sends on nor answers')

    def _connections(
        self, tcp: Json, connection: ClientConnection, request: SimulatedRequest | None, side: Side
    ) -> Iterator[ProxyEnding]:
        """Connections that are passed on as bytes, with the TLS in them where it was not ended here."""
        for target in forwarding.targets(tcp, request or SimulatedRequest()):
            effects = RouteEffects(timeout="0s", idle_timeout=tcp.get("idle_timeout", ""))
            for routed in self._to_cluster(target.share, tcp["stat_prefix"], target, request, effects, side):
                ending = msgspec.structs.replace(routed, is_http=False, status=0)
                passed = ending.connection
                if passed is not None and not passed.is_tls and connection.is_tls and connection.server_name:
                    carried = msgspec.structs.replace(connection, address=passed.address, port=passed.port)
                    yield msgspec.structs.replace(ending, connection=carried)
                else:
                    yield ending

    def _to_cluster(
        self,
        share: Fraction,
        route: str,
        target: WeightedTarget,
        request: SimulatedRequest | None,
        effects: RouteEffects,
        side: Side,
    ) -> Iterator[ProxyEnding]:
        name = target.cluster
        cluster = self.resources(snapshot.CLUSTER, name)
        common = ProxyEnding(
            share, "no cluster", name, route=route, cluster=name, effects=effects, request=request, side=side
        )
        if cluster is None:
            yield msgspec.structs.replace(common, status=_UNAVAILABLE)
            return
        sent = msgspec.structs.replace(
            common, kind="forwarded", connect_timeout=cluster.get("connect_timeout", _CONNECT_TIMEOUT)
        )
        if cluster.get("type") == "ORIGINAL_DST":
            yield msgspec.structs.replace(sent, connection=ClientConnection("the original destination"))
            return
        chosen = balancing.endpoints(cluster, self._assignment(cluster), target.subset)
        if not chosen:
            yield msgspec.structs.replace(common, kind="no endpoints", status=_UNAVAILABLE)
        for each in chosen:
            host = each.hostname if effects.is_host_of_endpoint else ""
            yield msgspec.structs.replace(
                sent,
                share=share * each.share,
                connection=balancing.connection(cluster, each, self.identity),
                request=msgspec.structs.replace(request, host=host) if request and host else request,
            )

    def _assignment(self, cluster: Json) -> Json:
        if cluster.get("type") != "EDS":
            return cluster.get("load_assignment")
        service = (cluster.get("eds_cluster_config") or {}).get("service_name") or cluster["name"]
        return self.resources(snapshot.ENDPOINTS, service)


def _connection_limit(config: Json) -> tuple[str, ...]:
    """The limit of new connections in words; none where it is switched off."""
    enabled = (config.get("runtime_enabled") or {}).get("default_value", True)
    bucket = config.get("token_bucket")
    if not enabled or not bucket:
        return ()
    return (f"{bucket.get('tokens_per_fill', 1)} connections per {bucket['fill_interval']}",)
