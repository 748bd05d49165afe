"""Scopes: where values hold for a proxy on one side of a change, and which entries of policies set them.

A proxy calls ports, calls arrive at its inbounds, and some policies are about it as a whole. Proxies with an
equal outbound part share one value for their calls, and those with equal traits one for each inbound, so that
what they share is compared once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.core import gateways, hostnames, inbound, inspect, match, request_words, rules, world
from koguma.core.build import encoding, network, snapshot, tls, zone_egress
from koguma.core.build.outbound_listeners import OutboundPort
from koguma.core.build.outbound_spec import OutboundSpec
from koguma.core.inbound import InboundRule
from koguma.core.incremental import Db
from koguma.core.items import ByKind, Entries
from koguma.core.policy_set import Policies
from koguma.core.rules import PortRules
from koguma.core.world import Inbound
from koguma.model import target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json

CALLS: Final = "calls"
ARRIVALS: Final = "arrivals"
PROXY: Final = "proxy"


class ValueScope(NamedTuple):
    """A part of a proxy in which values hold, in the words of `ValueChange`."""

    about: str
    at: str = ""
    route: str = ""
    requests: str = ""


class Setters(NamedTuple):
    """Entries of one kind that hold together in a scope; those of HTTP routes make rules."""

    kind: str
    entries: Entries

    @property
    def makes_rules(self) -> bool:
        """Whether they merge to rules of routes, and not to a single conf."""
        return self.kind == target_ref.HTTP_ROUTE


SettersByScope = Mapping[tuple[ValueScope, str], Setters]  # by the scope and the kind, or the entry
Facts = Mapping[str, Json]  # what holds in a scope and is set by no policy


class Part(msgspec.Struct, frozen=True, eq=False):
    """A part of a proxy: what holds in it. One value for all proxies that share it."""

    facts: Mapping[ValueScope, Facts]
    setters: SettersByScope


class Permissions(NamedTuple):
    """What decides who may call an inbound: the rules of kinds about that; None where everybody may."""

    at: str
    protocol: str
    by_kind: tuple[tuple[str, tuple[InboundRule, ...]], ...] | None


class ProxySide(msgspec.Struct, frozen=True):
    """A proxy on one side of the change."""

    calls: Part
    arrivals: tuple[Part, ...]
    whole: Part
    permissions: tuple[Permissions, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts."""
        return (self.calls, *self.arrivals, self.whole)


class ChangeSide:
    """Asks one database about proxies; what they share is made once."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self._shared: dict[object, Part] = {}
        self._permissions: dict[object, Permissions] = {}
        self._names: dict[Key, tuple[str, ...]] = {}

    def of(self, key: Key) -> ProxySide | None:
        """What holds for a proxy; None for one that is not there, and for zone proxies."""
        proxy = world.proxy(self.db, key) if key.kind == "Dataplane" else None
        traits = match.traits(self.db, key) if proxy is not None else None
        spec = snapshot.spec_of(self.db, key) if proxy is not None else None
        if proxy is None or traits is None or spec is None:
            return None
        proxy_class = spec.proxy_class
        inbounds = self._inbounds(key, proxy, traits)
        return ProxySide(
            self._calls(key, spec),
            tuple(self._arrivals(traits, *each) for each in inbounds),
            self._kept(("whole", proxy_class), lambda: self._whole(proxy_class)),
            tuple(self._permitting(traits, each) for each, _ in inbounds),
        )

    def of_egress(self, traits: match.Traits) -> Iterator[Part]:
        """What holds on zone egresses with these traits: for calls that arrive, and for those that leave."""
        calls = rules.outbound(self.db, zone_egress.proxy_class(self.db, traits))
        ports = [calls.of(*port) for port in zone_egress.services(self.db, traits.mesh)]
        yield self._of_ports((self.port_name(x.destination, x.section), {}, x) for x in ports)
        for section, own in traits.inbounds:
            yield self._of_inbound(traits, Inbound(section, "", int(section), "tcp", own), is_ready=True)

    def _kept(self, name: object, make: Callable[[], Part]) -> Part:
        part = self._shared.get(name)
        if part is None:
            part = self._shared[name] = make()
        return part

    # What it calls.

    def _calls(self, key: Key, spec: snapshot.SharedSpec) -> Part:
        if not isinstance(spec, OutboundSpec):
            return self._kept(("gateway", spec), lambda: self._of_ports(self._backends(key)))
        name = ("calls", spec.proxy_class, spec.ports, spec.binding)
        return self._kept(name, lambda: self._of_ports(self._ports(spec)))

    def _backends(self, gateway: Key) -> Iterator[tuple[str, Facts, PortRules]]:
        for port in inspect.called(self.db, gateway):
            yield self.port_name(port.destination, port.section), self._facts(port), port

    def _ports(self, spec: OutboundSpec) -> Iterator[tuple[str, Facts, PortRules]]:
        calls = rules.outbound(self.db, spec.proxy_class)
        for port in spec.ports:
            port_rules = calls.of(port.destination, port.section)
            facts = {**self._facts(port_rules), "addresses": [f"{ip}:{n}" for ip, n in port.addresses]}
            yield self._name_of(port), facts, port_rules

    def _facts(self, port: PortRules) -> Facts:
        return {
            "protocol": rules.protocol(self.db, port),
            "hostnames": list(self._hostnames(port.destination)),
        }

    def _hostnames(self, destination: Key) -> tuple[str, ...]:
        if destination not in self._names:
            claims = hostnames.of(self.db, destination)
            self._names[destination] = tuple(sorted({each.hostname for each in claims if each.hostname}))
        return self._names[destination]

    def _name_of(self, port: OutboundPort) -> str:
        subset = ",".join(f"{tag}={value}" for tag, value in port.subset)
        name = self.port_name(port.destination, port.section)
        return f"{name}[{subset}]" if subset else name

    def port_name(self, destination: Key, section: str) -> str:
        """The KRI of a port of a destination; one whose name makes none has its key instead."""
        return encoding.kri(self.db, destination, section) or f"{destination}:{section}"

    def _of_ports(self, ports: Iterator[tuple[str, Facts, PortRules]]) -> Part:
        facts: dict[ValueScope, Facts] = {}
        setters: dict[tuple[ValueScope, str], Setters] = {}
        for name, facts_of_port, port in ports:
            scope = ValueScope(CALLS, name)
            facts[scope] = facts_of_port
            own_routes = (target_ref.HTTP_ROUTE, port.http), (target_ref.TCP_ROUTE, port.tcp)
            for kind, entries in (*port.entries, *own_routes):
                if entries:
                    setters[scope, kind] = Setters(kind, entries)
            for route, by_kind in port.routes:
                through = scope._replace(route=encoding.kri(self.db, route.key, ""))
                inherited = dict(port.entries)
                for kind, entries in by_kind:
                    if inherited.get(kind) != entries:
                        setters[through, kind] = Setters(kind, entries)
        return Part(facts, setters)

    # What arrives.

    def _inbounds(
        self, key: Key, proxy: world.Proxy, traits: match.Traits
    ) -> tuple[tuple[Inbound, Json], ...]:
        net = network.networking(self.db, key)
        ready = {each.section: each.is_ready for each in net.inbounds} if net else {}
        found = [(each, ready.get(each.section, True)) for each in proxy.inbounds]
        listeners = gateways.listeners(self.db, traits.gateway) if traits.gateway is not None else ()
        found += [(Inbound(x.section, x.name, x.port, x.protocol, ()), True) for x in listeners]
        return tuple(found)

    def _arrivals(self, traits: match.Traits, each: Inbound, is_ready: Json) -> Part:
        name = ("arrivals", traits, each, is_ready)
        return self._kept(name, lambda: self._of_inbound(traits, each, is_ready))

    def _of_inbound(self, traits: match.Traits, each: Inbound, is_ready: Json) -> Part:
        scope = ValueScope(ARRIVALS, each.section)
        facts = {"port": each.port, "protocol": each.protocol, "tags": dict(each.tags), "ready": is_ready}
        setters: dict[tuple[ValueScope, str], Setters] = {}
        for kind, of_kind in inbound.of(self.db, traits, each.section):
            policy = world.kind_of(self.db, kind).policy
            is_listed = policy is not None and policy.hooks.permits is not None
            for rule in of_kind:
                of_client = scope._replace(requests=request_words.of_client(rule.client))
                # Permissions do not merge: each entry counts.
                name = f"{rule.entry.policy}{rule.entry.path}" if is_listed else kind
                known = setters.get((of_client, name))
                setters[of_client, name] = Setters(kind, (*(known.entries if known else ()), rule.entry))
        if traits.gateway is not None:
            setters |= self._routes_of_listener(scope, traits, each.section)
        return Part({scope: facts}, setters)

    def _routes_of_listener(self, scope: ValueScope, traits: match.Traits, section: str) -> SettersByScope:
        found: dict[tuple[ValueScope, str], Setters] = {}
        for kind, policies in inbound.policies_of(self.db, traits, section):
            if kind in match.ROUTE_KINDS:
                attached = Policies.of(each for each in policies if gateways.is_attached(self.db, each))
                entries = rules.entries_by_target(self.db, attached).mesh_wide
                if entries:
                    found[scope, kind] = Setters(kind, entries)
        return found

    def _permitting(self, traits: match.Traits, each: Inbound) -> Permissions:
        """What decides who may call an inbound; without mTLS nobody asks."""
        name = traits, each.section, each.protocol
        if name not in self._permissions:
            by_kind = None
            if tls.mtls(self.db, traits.mesh) is not None and traits.gateway is None:
                by_kind = tuple(
                    (kind, of_kind)
                    for kind, of_kind in inbound.of(self.db, traits, each.section)
                    if _permits(self.db, kind)
                )
            self._permissions[name] = Permissions(each.section, each.protocol, by_kind)
        return self._permissions[name]

    # The proxy as a whole.

    def _whole(self, proxy_class: rules.ProxyClass) -> Part:
        scope = ValueScope(PROXY)
        by_kind: ByKind = rules.whole_proxy(self.db, proxy_class)
        mtls = tls.mtls(self.db, proxy_class.mesh)
        word = None if mtls is None else f"{mtls.backend}, {'permissive' if mtls.is_permissive else 'strict'}"
        setters = {(scope, kind): Setters(kind, entries) for kind, entries in by_kind}
        return Part({scope: {"mTLS": word}}, setters)


def _permits(db: Db, kind: str) -> bool:
    policy = world.kind_of(db, kind).policy
    return policy is not None and policy.hooks.permits is not None
