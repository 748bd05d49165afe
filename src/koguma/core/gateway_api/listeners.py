"""Listeners of a Gateway: its own and those of its ListenerSets, and what is wrong with each.

The Gateway's come first, then those of its sets, the oldest set first. Inside one object all listeners that
conflict lose; between objects the earlier one wins.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.core import world
from koguma.core.build import mesh_secret
from koguma.core.gateway_api import grants, objects, selectors
from koguma.core.gateway_api.grants import ReferenceFrom, ReferenceTo
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.model import hostname, tls_certificate
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.tls_certificate import TlsCertificate

HOSTNAME_CONFLICT: Final = "HostnameConflict"
PROTOCOL_CONFLICT: Final = "ProtocolConflict"
UNSUPPORTED_PROTOCOL: Final = "UnsupportedProtocol"
UNSUPPORTED_VALUE: Final = "UnsupportedValue"
INVALID_CERTIFICATE: Final = "InvalidCertificateRef"
INVALID_KINDS: Final = "InvalidRouteKinds"
NOT_PERMITTED: Final = "RefNotPermitted"

_HTTP: Final = (objects.HTTP_ROUTE, objects.GRPC_ROUTE)
# The kinds of routes that a listener can take, by its protocol.
ROUTES_BY_PROTOCOL: Final[Mapping[str, tuple[str, ...]]] = {
    "HTTP": _HTTP,
    "HTTPS": _HTTP,
    "TLS": (objects.TLS_ROUTE, objects.TCP_ROUTE),
    "TCP": (objects.TCP_ROUTE,),
}
_SECRET: Final = "Secret.core"  # noqa: S105 - a kind


class Reason(NamedTuple):
    """The reason of a condition, and a sentence."""

    reason: str
    message: str


class CertificateRef(NamedTuple):
    """A Secret that a listener may use."""

    namespace: str
    name: str


class GatewayApiListener(msgspec.Struct, frozen=True):
    """A listener as it is written, with what is wrong in it."""

    owner: Key  # the Gateway, or the ListenerSet
    number: int  # in the owner's list
    name: str
    port: int
    protocol: str  # in capitals
    hostname: str  # in the normal form
    kinds: tuple[str, ...]  # of routes, as they are stored
    namespaces: str  # Same, All, Selector
    selector: Json = None
    is_passthrough: bool = False
    certificates: tuple[CertificateRef, ...] = ()  # good ones
    conflict: Reason | None = None
    refused: Reason | None = None  # why it is not accepted
    unresolved: Reason | None = None

    @property
    def section(self) -> str:
        """Its name in the MeshGateway: names of sets are unique in the set only."""
        owner = self.owner
        return self.name if owner.kind == objects.GATEWAY else f"{owner.namespace}/{owner.name}/{self.name}"

    @property
    def is_served(self) -> bool:
        """Whether proxies listen; a TLS listener without any good certificate would refuse everybody."""
        has_certificate = bool(self.certificates) or self.is_passthrough or self.protocol in ("HTTP", "TCP")
        return self.conflict is None and self.refused is None and has_certificate


def parent_of(listener_set: Resource) -> Key | None:
    """The Gateway that a ListenerSet names."""
    ref = objects.fields(objects.fields(listener_set.spec).get("parentRef"))
    if (ref.get("group") or objects.GROUP, ref.get("kind") or "Gateway") != (objects.GROUP, "Gateway"):
        return None
    namespace = objects.text(ref.get("namespace")) or listener_set.namespace
    return Key(objects.GATEWAY, "", "", namespace, objects.text(ref.get("name")))


def _parent(_key: Key, resource: Resource) -> list[Key]:
    parent = parent_of(resource) if resource.kind == objects.LISTENER_SET else None
    return [parent] if parent else []


_SETS = Index(world.RESOURCES, _parent)


@question
def sets(db: Db, gateway: Key) -> tuple[Key, ...]:
    """The ListenerSets that name a Gateway, the oldest first."""
    named = sorted(_SETS.items(db, gateway), key=lambda pair: (pair[1].creation_time, pair[0][3:]))
    return tuple(key for key, _ in named)


@question
def is_allowed(db: Db, gateway: Key, listener_set: Key) -> bool:
    """Whether a Gateway lets a ListenerSet add listeners."""
    resource = world.RESOURCES.get(db, gateway)
    allowed = objects.fields(objects.fields(resource.spec if resource else None).get("allowedListeners"))
    namespaces = objects.fields(allowed.get("namespaces"))
    return selectors.allows(
        db,
        objects.text(namespaces.get("from")) or "None",
        namespaces.get("selector"),
        gateway.namespace,
        listener_set.namespace,
    )


@question
def of(db: Db, gateway: Key) -> tuple[GatewayApiListener, ...]:
    """All listeners of a Gateway, those of allowed sets too."""
    owners = (gateway, *(each for each in sets(db, gateway) if is_allowed(db, gateway, each)))
    found: list[GatewayApiListener] = []
    for owner in owners:
        left = [_with_conflicts(each, found) for each in _written(db, owner, gateway)]
        found += [_with_conflicts(each, left) for each in left]
    return tuple(found)


def _with_conflicts(listener: GatewayApiListener, others: Sequence[GatewayApiListener]) -> GatewayApiListener:
    """A listener with its first conflict; who has lost already is in nobody's way."""
    if listener.conflict is not None:
        return listener
    for other in others:
        if other.conflict is None and other is not listener:
            conflict = _conflict(listener, other)
            if conflict is not None:
                return msgspec.structs.replace(listener, conflict=conflict)
    return listener


def _conflict(one: GatewayApiListener, other: GatewayApiListener) -> Reason | None:
    """Listeners of one port need one protocol, and a host name each; TCP has no host names."""
    if one.port != other.port or UNSUPPORTED_PROTOCOL in (_refusal(one), _refusal(other)):
        return None
    if one.protocol != other.protocol:
        message = f"another listener speaks {other.protocol} on port {one.port}"
        return Reason(PROTOCOL_CONFLICT, message)
    if one.hostname == other.hostname:
        return Reason(HOSTNAME_CONFLICT, f"another listener of port {one.port} has the same host name")
    return None


def _refusal(listener: GatewayApiListener) -> str:
    return listener.refused.reason if listener.refused else ""


def _written(db: Db, owner: Key, gateway: Key) -> list[GatewayApiListener]:
    resource = world.RESOURCES.get(db, owner)
    spec = objects.fields(resource.spec if resource else None)
    parent = world.RESOURCES.get(db, gateway)
    frontend = objects.fields(objects.fields(parent.spec if parent else None).get("tls")).get("frontend")
    return [
        _listener(db, owner, number, each, objects.fields(frontend))
        for number, each in objects.items(spec.get("listeners"))
    ]


def _listener(
    db: Db, owner: Key, number: int, written: Mapping[str, Json], frontend: Mapping[str, Json]
) -> GatewayApiListener:
    allowed = objects.fields(written.get("allowedRoutes"))
    namespaces = objects.fields(allowed.get("namespaces"))
    protocol = objects.text(written.get("protocol")).upper()
    tls = objects.fields(written.get("tls"))
    port = objects.number(written.get("port")) or 0
    kinds, unknown = _kinds(allowed, protocol)
    is_passthrough = protocol == "TLS" and tls.get("mode") == "Passthrough"
    needs_certificate = protocol in ("HTTPS", "TLS") and not is_passthrough
    certificates, problems = _certificates(db, owner, tls) if needs_certificate else ((), ())
    if unknown:
        problems = (
            *problems,
            Reason(INVALID_KINDS, f"{', '.join(unknown)} cannot be attached to {protocol}"),
        )
    return GatewayApiListener(
        owner=owner,
        number=number,
        name=objects.text(written.get("name")),
        port=port,
        protocol=protocol,
        hostname=hostname.normal(objects.text(written.get("hostname"))),
        kinds=kinds,
        namespaces=objects.text(namespaces.get("from")) or "Same",
        selector=namespaces.get("selector"),
        is_passthrough=is_passthrough,
        certificates=certificates,
        refused=_refused(protocol, port, frontend),
        # What is not permitted is said before what is wrong with it.
        unresolved=min(problems, key=lambda each: each.reason != NOT_PERMITTED, default=None),
    )


def _refused(protocol: str, port: int, frontend: Mapping[str, Json]) -> Reason | None:
    if protocol not in ROUTES_BY_PROTOCOL:
        known = ", ".join(ROUTES_BY_PROTOCOL)
        return Reason(UNSUPPORTED_PROTOCOL, f"a gateway speaks {known} here, not {protocol}")
    chosen = objects.fields(frontend.get("default"))
    for _, each in objects.items(frontend.get("perPort")):
        if each.get("port") == port:
            chosen = objects.fields(each.get("tls"))
    if protocol == "HTTPS" and chosen.get("validation"):
        message = "certificates of clients cannot be checked here, so that nobody is let in without"
        return Reason(UNSUPPORTED_VALUE, message)
    return None


def _kinds(allowed: Mapping[str, Json], protocol: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kinds of routes that a listener takes, and those that it lists and cannot take."""
    possible = ROUTES_BY_PROTOCOL.get(protocol, ())
    listed = [
        f"{objects.text(each.get('kind'))}.{each.get('group', objects.GROUP)}"
        for _, each in objects.items(allowed.get("kinds"))
    ]
    if not listed:
        return possible, ()
    return tuple(each for each in possible if each in listed), tuple(
        each for each in listed if each not in possible
    )


def _certificates(
    db: Db, owner: Key, tls: Mapping[str, Json]
) -> tuple[tuple[CertificateRef, ...], tuple[Reason, ...]]:
    good: list[CertificateRef] = []
    problems: list[Reason] = []
    refs = [ref for _, ref in objects.items(tls.get("certificateRefs"))]
    if not refs:
        problems.append(Reason(INVALID_CERTIFICATE, "it has no certificate: tls.certificateRefs names none"))
    for ref in refs:
        named = CertificateRef(
            objects.text(ref.get("namespace")) or owner.namespace, objects.text(ref.get("name"))
        )
        problem = _certificate_problem(db, owner, ref, named)
        if problem is None:
            good.append(named)
        else:
            problems.append(problem)
    return tuple(good), tuple(problems)


def _certificate_problem(db: Db, owner: Key, ref: Mapping[str, Json], named: CertificateRef) -> Reason | None:
    group, kind = objects.text(ref.get("group")), objects.text(ref.get("kind")) or "Secret"
    if (group, kind) != ("", "Secret"):
        return Reason(INVALID_CERTIFICATE, f"{kind} {named.name} cannot be a certificate; use a Secret")
    shown = f"Secret {named.namespace}/{named.name}"
    source = ReferenceFrom(objects.GROUP, objects.word(owner.kind), owner.namespace)
    if not grants.is_permitted(db, source, ReferenceTo("", "Secret", *named)):
        message = f"{shown} is in another namespace, and no ReferenceGrant there lets {source.kind}s of"
        return Reason(NOT_PERMITTED, f"{message} namespace {owner.namespace} refer to it")
    problem = certificate_problem(db, named)
    return Reason(INVALID_CERTIFICATE, f"{shown}: {problem}") if problem else None


@question
def certificate_problem(db: Db, named: CertificateRef) -> str:
    """What is wrong with the certificate of a Secret; empty where nothing is."""
    found = certificate(db, named)
    return found if isinstance(found, str) else ""


@question
def certificate(db: Db, named: CertificateRef) -> TlsCertificate | str:
    """The certificate and key of a Secret of type kubernetes.io/tls, or the reason why there is none."""
    resource = world.RESOURCES.get(db, Key(_SECRET, "", "", named.namespace, named.name))
    if resource is None:
        return "there is none of that name"
    data = objects.fields(objects.fields(resource.spec).get("data"))
    chain, key = (mesh_secret.decoded(objects.text(data.get(name))) for name in ("tls.crt", "tls.key"))
    if not chain or not key:
        return "it needs tls.crt and tls.key"
    return tls_certificate.read_pair(chain, key)
