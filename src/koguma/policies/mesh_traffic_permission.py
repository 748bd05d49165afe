"""Who may call: which clients a proxy lets in once it has a certificate.

MeshTrafficPermission acts on inbound traffic. `rules` name callers by their SPIFFE identity: `deny`
refuses, `allow` lets in, `allowWithShadowDeny` lets in and notes that a denial is planned. The older
`from` names callers by tags and gives them one action. A call that nothing allows is refused, so a mesh
with mTLS and without any permission carries no traffic.

At a built-in gateway it acts on listeners for other meshes (`crossMesh`), whose callers show a certificate:
name these by identity, `spiffe://<their mesh>/<service>`. There `from` names callers of the gateway's own
mesh alone. Clients of all other listeners are nobody in a mesh.

On a zone egress it decides who may call external services; `sni` in a match names one of them. With
`routing.defaultForbidMeshExternalServiceAccess` of the Mesh only such matches allow a call, and without an
egress the caller's own proxy asks them.

```yaml
type: MeshTrafficPermission
name: web-may-call-backend
mesh: default
spec:
  targetRef: {kind: Dataplane, labels: {app: backend}}
  rules:
    - default:
        allow:
          - spiffeID: {type: Exact, value: "spiffe://default/web"}
        deny:
          - spiffeID: {type: Prefix, value: "spiffe://default/legacy/"}
```
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec

from koguma.envoy import filters, rbac
from koguma.envoy.rbac import Decision
from koguma.model import columns, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, Deprecation, Kind, Policy, V1Conversion, ValidationContext
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import calling, fields, spelling


class PermissionAction(Spec):
    """What happens to the calls of some clients."""

    action: Annotated[
        Literal["Allow", "Deny", "AllowWithShadowDeny"] | None,
        doc("Let in, refuse, or let in and note that a denial is planned."),
    ] = None


class PermissionFrom(Spec):
    """A decision about some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients.")]
    default: Annotated[PermissionAction, doc("The decision.")] = PermissionAction()


class PermissionConf(Spec):
    """Who is let in and who is not."""

    deny: Annotated[tuple[ClientMatch, ...], doc("Refuse these callers.")] = ()
    allow_with_shadow_deny: Annotated[
        tuple[ClientMatch, ...], doc("Let these callers in, and note that a denial is planned.")
    ] = ()
    allow: Annotated[tuple[ClientMatch, ...], doc("Let these callers in.")] = ()


class PermissionRule(Spec):
    """A decision about calls that arrive."""

    default: Annotated[PermissionConf, doc("Who is let in and who is not.")] = PermissionConf()


class MeshTrafficPermissionSpec(Spec):
    """Which proxies, and who may call them."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    from_: Annotated[tuple[PermissionFrom, ...], doc("Decisions by tags, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[PermissionRule, ...], doc("Decisions by identity.")] = ()


def validate(spec: MeshTrafficPermissionSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; matches are found under `default`, where they are written."""
    top = spec.target_ref or target_ref.MESH
    inbound = bool(spec.from_ or spec.rules)
    allowed = target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=inbound)
    if spec.from_ and spec.rules:
        yield Violation("spec", fields.FROM_BESIDE_RULES, "exclusive")
    if not inbound:
        yield Violation("spec", "at least one of 'from' or 'rules' has to be defined", "required")
    yield from fields.entries("spec.from", spec.from_, target_ref.CLIENTS, _action)
    for index, rule in enumerate(spec.rules):
        yield from _rule(rule.default, item("spec.rules", index))


def _action(conf: PermissionAction, path: str) -> Iterator[Violation]:
    if conf.action is None:
        yield Violation(child(path, "action"), fields.MUST_BE_DEFINED, "required")


def _rule(conf: PermissionConf, path: str) -> Iterator[Violation]:
    if not (conf.allow or conf.allow_with_shadow_deny or conf.deny):
        message = "at least one of 'allow', 'allowWithShadowDeny', 'deny' has to be defined"
        yield Violation(path, message, "required")
    at = child(path, "default")
    yield from fields.matches(conf.deny, child(at, "deny"))
    yield from fields.matches(conf.allow_with_shadow_deny, child(at, "allowWithShadowDeny"))
    yield from fields.matches(conf.allow, child(at, "allow"))


def warn(spec: MeshTrafficPermissionSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED


# A denial wins, whosever it is; then a planned denial is noted, also where somebody else lets the caller in.
_LISTS: Final[tuple[tuple[rbac.Action, str], ...]] = (
    ("Deny", "deny"),
    ("AllowWithShadowDeny", "allowWithShadowDeny"),
    ("Allow", "allow"),
)


def inbound(_conf: Json, entries: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """Who may call one inbound: a filter for requests, or for connections where there are no requests."""
    decisions = _decided(entries, context)
    if context.is_http:
        return {"extensions": {filters.RBAC: rbac.http(decisions)}}
    return {"network_filters": {filters.NETWORK_RBAC: rbac.network(context.name, decisions)}}


def permits(
    entries: tuple[InboundEntry, ...], context: OverlayContext, uris: tuple[str, ...], server_name: str
) -> bool:
    """Whether a caller may call a server: what the filter would decide about them."""
    for decision in _decided(entries, context):
        if any(caller.is_one(uris, server_name) for caller in decision.callers):
            return decision.action != "Deny"
    return False


def _decided(entries: tuple[InboundEntry, ...], context: OverlayContext) -> tuple[Decision, ...]:
    decisions = tuple(_decisions(entries, context))
    return tuple(_by_server_name(decisions)) if context.allows_by_server_name else decisions


def _by_server_name(decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Denials, and of all else what names the server: a mesh may forbid external services by default."""
    for each in decisions:
        callers = [caller for caller in each.callers if each.action == "Deny" or caller.server_name]
        if callers:
            yield msgspec.structs.replace(each, callers=tuple(callers))


def _decisions(entries: tuple[InboundEntry, ...], context: OverlayContext) -> Iterator[Decision]:
    """Decisions by identity; those by tags count only where there are no others, as in Kuma."""
    by_identity = [each for each in entries if "action" not in each.conf]
    if not by_identity:
        yield from _by_tags(entries, context)
    for action, field in _LISTS:
        for each in by_identity:
            trusting = action == "Deny"
            callers = [calling.of_match(match, trusting=trusting) for match in each.conf.get(field) or ()]
            if callers:
                yield Decision(action, _name(each), tuple(callers))


def _by_tags(entries: tuple[InboundEntry, ...], context: OverlayContext) -> Iterator[Decision]:
    """The most important policy decides, as in Kuma, even where another names the caller more closely."""
    for each in entries[::-1]:
        action = each.conf["action"]
        caller = calling.of_tags(each.tags, context.mesh, trusting=action == "Deny")
        if caller.is_anybody and context.admits_meshes and action != "Deny":
            caller = calling.of_mesh(context.mesh)  # kind Mesh is this mesh: others are named by identity
        yield Decision(action, _name(each), (caller,))


def _name(entry: InboundEntry) -> str:
    return entry.kri or str(entry.origin)


_LETS_IN: Final = ("Allow", "AllowWithShadowDeny")


def lets_in(spec: Json) -> bool:
    """Whether a spec allows anybody to call."""
    actions = ((each.get("default") or {}).get("action") for each in spec.get("from") or ())
    if any(action in _LETS_IN for action in actions):
        return True
    confs = [each.get("default") or {} for each in spec.get("rules") or ()]
    return any(conf.get("allow") or conf.get("allowWithShadowDeny") for conf in confs)


_V1: Final = V1Conversion(
    keeps=(
        Deprecation(
            "spec.from", "write spec.rules by identity", kept="it names callers by tags, which rules cannot"
        ),
    )
)


KIND = Kind(
    name="MeshTrafficPermission",
    plural="meshtrafficpermissions",
    short="mtp",
    doc=__doc__,
    spec=MeshTrafficPermissionSpec,
    columns=columns.INBOUND,
    sync=POLICY,
    policy=Policy(
        phase=Phase.PERMISSIONS,
        has_from=True,
        has_rules=True,
        hooks=PolicyHooks(inbound=inbound, permits=permits),
        lets_in=lets_in,
    ),
    clean=spelling.refs,
    v1=_V1,
    validate=validate,
    warn=warn,
)
