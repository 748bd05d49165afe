"""The listeners of a built-in gateway, where traffic from outside enters the mesh.

A MeshGateway gives its listeners to the proxies that `selectors` match: Dataplanes whose
`networking.gateway` has type BUILTIN. Routes (MeshHTTPRoute, MeshTCPRoute) that refer to it say where
requests go. A route chooses between listeners by `sectionName`, which is a listener's `name` or its port, or
by `tags` of the gateway and of a listener. Several listeners may share a port if they agree on the protocol
and differ in the host name. A `crossMesh` listener takes calls of proxies of other meshes, with the
certificates of these, as far as a MeshTrafficPermission allows them.

```yaml
type: MeshGateway
name: edge
mesh: default
selectors:
  - match: {kuma.io/service: edge}
conf:
  listeners:
    - name: https
      port: 443
      protocol: HTTPS
      hostname: www.example.com
      tls:
        mode: TERMINATE
        certificates: [{secret: gateway-certificate}]
```
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from koguma.kinds import rules
from koguma.kinds.data_source import DataSource
from koguma.kinds.rules import UInt32
from koguma.model import columns, names, tags
from koguma.model.kind import BOTH_WAYS, Kind, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation, child, item


class MeshGatewaySelector(Spec):
    """Proxies by their tags."""

    match: Annotated[Mapping[str, str] | None, doc("Tags that must all fit; `*` is any value.")] = None


class MeshGatewayTls(Spec):
    """TLS of a listener."""

    mode: Annotated[
        Literal["NONE", "TERMINATE", "PASSTHROUGH"] | None,
        doc("End TLS at the gateway, or let it through by its server name."),
    ] = None
    certificates: Annotated[
        tuple[DataSource, ...] | None,
        doc("Certificate and key in one; a second one for another type of key."),
    ] = None
    options: Annotated[Mapping[str, Json] | None, doc("Reserved.")] = None


class MeshGatewayResources(Spec):
    """Limits of a listener."""

    connection_limit: Annotated[UInt32 | None, doc("How many connections may be open.")] = None


class MeshGatewayListener(Spec):
    """One port, or one host name on a port."""

    name: Annotated[
        str | None, doc("By which a policy's `sectionName` chooses this listener; unique in the gateway.")
    ] = None
    hostname: Annotated[
        str | None, doc("Only requests for this host; `*.` at its beginning is any label.")
    ] = None
    port: Annotated[UInt32 | None, doc("The port.")] = None
    protocol: Annotated[
        Literal["NONE", "TCP", "TLS", "HTTP", "HTTPS"] | None, doc("What is spoken on the port.")
    ] = None
    tls: Annotated[MeshGatewayTls | None, doc("TLS, with protocol HTTPS or TLS.")] = None
    tags: Annotated[Mapping[str, str] | None, doc("Tags by which routes choose this listener.")] = None
    cross_mesh: Annotated[
        bool | None,
        doc("Take calls of proxies, of all meshes with mTLS, and no others. Only with HTTP."),
    ] = None
    resources: Annotated[MeshGatewayResources | None, doc("Limits.")] = None


class MeshGatewayConf(Spec):
    """What the gateway does."""

    listeners: Annotated[tuple[MeshGatewayListener, ...] | None, doc("The listeners.")] = None


class MeshGatewaySpec(Spec):
    """Which proxies, and their listeners."""

    selectors: Annotated[tuple[MeshGatewaySelector, ...] | None, doc("The proxies that listen.")] = None
    tags: Annotated[Mapping[str, str] | None, doc("Tags of all listeners.")] = None
    conf: Annotated[MeshGatewayConf | None, doc("The listeners.")] = None


_OWN_TAGS: Final = (tags.EXTERNAL_SERVICE_NAME, tags.PROTOCOL, tags.SERVICE, tags.ZONE)
_NAME_MESSAGE: Final = "must be a DNS label, at most 63 lower-case letters, digits and hyphens, and no number"
_HOSTNAME_LENGTH_MAX: Final = 253
_CERTIFICATES_MAX: Final = 2


def validate(spec: MeshGatewaySpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    listeners = (spec.conf.listeners if spec.conf else None) or ()
    cross_mesh = any(listener.cross_mesh for listener in listeners)
    yield from _selector_violations(spec.selectors or (), cross_mesh=cross_mesh)
    yield from tags.violations(spec.tags or {}, "tags", selector=True, forbidden=_OWN_TAGS)
    if spec.conf is None:
        yield Violation("conf", rules.CANNOT_BE_EMPTY_MESSAGE, "required")
        return
    if not listeners:
        yield Violation("conf.listeners", rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    for index, listener in enumerate(listeners):
        yield from _listener_violations(listener, item("conf.listeners", index))
    yield from _conflicts(listeners)
    yield from _name_conflicts(listeners)


def _selector_violations(
    selectors: tuple[MeshGatewaySelector, ...], *, cross_mesh: bool
) -> Iterator[Violation]:
    if not selectors:
        yield Violation("selectors", "must have at least one element", "required")
    for index, selector in enumerate(selectors):
        path = item("selectors", index)
        if cross_mesh and index > 0:
            yield Violation(path, "there can be at most one selector", "length")
        yield from tags.violations(
            selector.match or {}, child(path, "match"), selector=True, needs_one=True, needs_service=True
        )


def _listener_violations(listener: MeshGatewayListener, path: str) -> Iterator[Violation]:
    if listener.name is not None and (not names.is_dns_label(listener.name) or listener.name.isdigit()):
        yield Violation(child(path, "name"), _NAME_MESSAGE, "name")
    if listener.hostname:
        yield from _hostname_violations(listener.hostname, child(path, "hostname"))
    yield from rules.port(listener.port, child(path, "port"))
    yield from _protocol_violations(listener, path)
    yield from _tls_violations(listener, child(path, "tls"))
    yield from tags.violations(listener.tags or {}, child(path, "tags"), selector=True, forbidden=_OWN_TAGS)


def _hostname_violations(hostname: str, path: str) -> Iterator[Violation]:
    if len(hostname) > _HOSTNAME_LENGTH_MAX:
        yield Violation(path, f"must be at most {_HOSTNAME_LENGTH_MAX} characters", "length")
    if hostname.startswith("*."):
        if not rules.is_dns_name(hostname.removeprefix("*.")):
            yield Violation(path, "invalid wildcard domain", "hostname")
    elif hostname != "*" and not rules.is_dns_name(hostname):
        yield Violation(path, "invalid hostname", "hostname")


def _protocol_violations(listener: MeshGatewayListener, path: str) -> Iterator[Violation]:
    if listener.protocol in (None, "NONE"):
        yield Violation(child(path, "protocol"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    if listener.protocol != "HTTPS":
        return
    if listener.cross_mesh:
        yield Violation(child(path, "protocol"), "protocol is not supported with crossMesh", "forbidden")
    elif listener.tls is None:
        yield Violation(child(path, "tls"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    elif listener.tls.mode == "PASSTHROUGH":
        yield Violation(child(path, "tls.mode"), "mode is not supported on HTTPS listeners", "forbidden")


def _tls_violations(listener: MeshGatewayListener, path: str) -> Iterator[Violation]:
    tls = listener.tls
    if tls is None:
        return
    mode, certificates = tls.mode or "NONE", tls.certificates or ()
    at = child(path, "certificates")
    if listener.cross_mesh:
        if mode != "NONE" or certificates:
            yield Violation(path, "must be empty with crossMesh", "forbidden")
    elif mode == "NONE":
        yield Violation(child(path, "mode"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    elif mode == "TERMINATE" and not certificates:
        yield Violation(at, "cannot be empty in TLS termination mode", "required")
    elif mode == "TERMINATE" and len(certificates) > _CERTIFICATES_MAX:
        yield Violation(at, f"cannot have more than {_CERTIFICATES_MAX} certificates", "length")


def _conflicts(listeners: tuple[MeshGatewayListener, ...]) -> Iterator[Violation]:
    """Listeners that cannot share their port, each named."""
    by_port: dict[int, list[tuple[int, MeshGatewayListener]]] = defaultdict(list)
    for index, listener in enumerate(listeners):
        by_port[listener.port or 0].append((index, listener))
    for shared in by_port.values():
        protocols = {listener.protocol or "NONE" for _, listener in shared}
        hosts = [(listener.hostname or "*").lower() for _, listener in shared]
        limits = {limit for _, listener in shared if (limit := _limit(listener))}
        for index, listener in shared:
            path = item("conf.listeners", index)
            if len(protocols) > 1:
                yield Violation(path, "protocol conflicts with other listeners on this port", "unique")
            if hosts.count((listener.hostname or "*").lower()) > 1:
                yield Violation(path, "multiple listeners for hostname on this port", "unique")
            if len(limits) > 1 and _limit(listener):
                message = "conflicting values for this port"
                yield Violation(child(path, "resources.connectionLimit"), message, "unique")


def _name_conflicts(listeners: tuple[MeshGatewayListener, ...]) -> Iterator[Violation]:
    count = Counter(listener.name for listener in listeners if listener.name)
    for index, listener in enumerate(listeners):
        if listener.name and count[listener.name] > 1:
            path = child(item("conf.listeners", index), "name")
            yield Violation(path, "must be unique among the listeners of a gateway", "unique")


def _limit(listener: MeshGatewayListener) -> int:
    return (listener.resources.connection_limit if listener.resources else None) or 0


KIND = Kind(
    name="MeshGateway",
    plural="meshgateways",
    short="mgw",
    doc=__doc__,
    spec=MeshGatewaySpec,
    columns=columns.MESH_GATEWAY,
    sync=BOTH_WAYS,
    namespaced=False,
    inline=True,
    validate=validate,
)
