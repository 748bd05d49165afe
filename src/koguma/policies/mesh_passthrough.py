"""What may leave the mesh: destinations that the mesh does not know and that a proxy still lets through.

MeshPassthrough acts on whole proxies with a transparent proxy. Without any such policy everything passes.
Once there is one, only what `appendMatch` names passes, unless `passthroughMode` says All or None. Lists
of several policies are put together.

```yaml
type: MeshPassthrough
name: allow-payments
mesh: default
spec:
  targetRef: {kind: Dataplane, labels: {app: checkout}}
  default:
    passthroughMode: Matched
    appendMatch:
      - {type: Domain, value: "*.payments.example.com", protocol: tls, port: 443}
      - {type: CIDR, value: 10.42.0.0/16, protocol: tcp}
```
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from koguma.model import columns, ip_range, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, spelling


class AppendMatch(Spec):
    """One destination."""

    type: Annotated[Literal["Domain", "IP", "CIDR"], doc("What the value is.")]
    value: Annotated[str, doc("A domain, which may begin with `*.`; an address; or a range.")]
    port: Annotated[int | None, doc("The port; all ports by default.")] = None
    protocol: Annotated[
        Literal["tcp", "tls", "grpc", "http", "http2", "mysql"], doc("What is spoken there; tcp by default.")
    ] = "tcp"


class PassthroughConf(Spec):
    """What passes."""

    passthrough_mode: Annotated[
        Literal["All", "Matched", "None"] | None, doc("Everything, only what matches, or nothing.")
    ] = None
    append_match: Annotated[
        tuple[AppendMatch, ...] | None, doc("Destinations that pass in mode Matched.")
    ] = None


class MeshPassthroughSpec(Spec):
    """Which proxies, and what they let through."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    default: Annotated[PassthroughConf, doc("What passes.")] = PassthroughConf()


_PROXIES: Final = ("Mesh", "Dataplane", "MeshSubset")
# A request's protocol is told apart by its port alone, so these three cannot share one.
_HTTP_LIKE: Final = ("grpc", "http", "http2")
_SAME_PORT: Final = (
    "using the same port in multiple matches requires the same protocol for the following protocols:"
    f" [{' '.join(_HTTP_LIKE)}]"
)
_DNS_NAME = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_DNS_NAME_LENGTH_MAX: Final = 253


def validate(spec: MeshPassthroughSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", _PROXIES, sections=False)
    matches = spec.default.append_match or ()
    spoken: dict[int | None, str] = {}
    seen: set[tuple[int | None, str, str]] = set()
    for index, match in enumerate(matches):
        path = item("spec.default.appendMatch", index)
        yield from _match(match, path)
        if match.protocol in _HTTP_LIKE and spoken.setdefault(match.port, match.protocol) != match.protocol:
            yield Violation(child(path, "port"), _SAME_PORT, "conflict")
        key = (match.port, match.protocol, match.value)
        if key in seen:
            message = f"value {match.value} is already defined for this port and protocol"
            yield Violation(child(path, "value"), message, "duplicate")
        seen.add(key)


def _match(match: AppendMatch, path: str) -> Iterator[Violation]:
    if match.protocol == "mysql" and match.port is None:
        yield Violation(child(path, "port"), "port must be defined for Mysql protocol", "required")
    yield from fields.port(match.port, child(path, "port"))
    if match.type == "Domain":
        yield from _domain(match, path)
    elif ip_range.parsed(match.type, match.value) is None:
        yield Violation(child(path, "value"), f"provided {match.type} has incorrect value", "address")


def _domain(match: AppendMatch, path: str) -> Iterator[Violation]:
    if match.protocol in ("tcp", "mysql"):
        message = f"protocol {match.protocol} is not supported for a domain"
        yield Violation(child(path, "protocol"), message, "forbidden")
    wildcard = match.value.startswith("*")
    if wildcard and match.port is None and match.protocol in _HTTP_LIKE:
        message = "wildcard domains doesn't work for all ports and layer 7 protocol"
        yield Violation(child(path, "port"), message, "required")
    partial = wildcard and match.value != "*" and not match.value.startswith("*.")
    name = match.value.removeprefix("*.")
    if partial:
        message = "provided DNS has incorrect value, partial wildcard is currently not supported"
        yield Violation(child(path, "value"), message, "name")
    elif match.value != "*" and not _is_dns_name(name):
        yield Violation(child(path, "value"), "provided DNS has incorrect value", "name")


def _is_dns_name(text: str) -> bool:
    return len(text) <= _DNS_NAME_LENGTH_MAX and _DNS_NAME.fullmatch(text) is not None


def warn(spec: MeshPassthroughSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations, and matches that cannot act."""
    yield from target_ref.warnings(spec.target_ref)
    mode = spec.default.passthrough_mode
    if mode in ("All", "None") and spec.default.append_match:
        yield f"spec.default.appendMatch has no effect with passthroughMode {mode}"


def whole(conf: Json, _context: OverlayContext) -> Overlay:
    """What passes, for the listener to which the kernel redirects calls to unknown destinations."""
    matches = [
        {
            "protocol": match.get("protocol") or "tcp",
            "value": match["value"],
            "port": match.get("port") or 0,
            "domain": match["value"].lower() if match["type"] == "Domain" else "",
        }
        for match in conf.get("appendMatch") or ()
    ]
    return {"passthrough": {"mode": conf.get("passthroughMode") or "Matched", "matches": matches}}


KIND = Kind(
    name="MeshPassthrough",
    plural="meshpassthroughs",
    short="mp",
    doc=__doc__,
    spec=MeshPassthroughSpec,
    columns=columns.PASSTHROUGH,
    sync=POLICY,
    policy=Policy(phase=Phase.PASSTHROUGH, hooks=PolicyHooks(whole=whole)),
    clean=spelling.refs,
    validate=validate,
    warn=warn,
)
