"""Whom to ask about a service, and when it may be away.

MeshNote is a policy of another package than Koguma's. It tells people who owns what a proxy calls, where the
runbook is, and when maintenance is announced. Over HTTP it acts on calls, too: every response comes with the
owner in the header `x-service-owner`, and a caller waits no longer than `patience`. What is said for the
whole mesh holds for every service; a note about one service says only what differs there. Links of all notes
are joined.

```yaml
type: MeshNote
name: backend
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        owner: team-backend
        runbook: https://wiki.example.com/backend
        maintenance: {weekday: Sunday, start: "02:00", duration: 2h}
```
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from koguma.envoy import proto_json
from koguma.model import duration, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import Overlay, OverlayContext, PolicyHooks
from koguma.model.schema import Duration, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item

_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d", re.ASCII)
_DAY_SECONDS = 24 * 60 * 60


class NoteMaintenance(Spec):
    """When a service may be away, every week, in UTC."""

    weekday: Annotated[
        Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"] | None,
        doc("The day."),
    ] = None
    start: Annotated[str | None, doc('The time of day, such as "02:00".')] = None
    duration: Annotated[Duration | None, doc("How long; a day at most.")] = None


class NoteConf(Spec):
    """What is noted."""

    owner: Annotated[str | None, doc("Who answers for the service.")] = None
    runbook: Annotated[str | None, doc("Where it says what to do.")] = None
    patience: Annotated[Duration | None, doc("How long callers wait for a response.")] = None
    maintenance: Annotated[NoteMaintenance | None, doc("When the service may be away.")] = None
    append_links: Annotated[tuple[str, ...], doc("Further pages; those of all notes are joined.")] = ()


class NoteTo(Spec):
    """A note about one destination, or about all of them."""

    target_ref: Annotated[TargetRef, doc("The destination.")]
    default: Annotated[NoteConf, doc("The note.")] = NoteConf()


class MeshNoteSpec(Spec):
    """Which proxies are told, and what."""

    target_ref: Annotated[TargetRef | None, doc("The proxies that are told; all by default.")] = None
    to: Annotated[tuple[NoteTo, ...], doc("The notes.")] = ()


def validate(spec: MeshNoteSpec, context: ValidationContext) -> Iterator[Violation]:
    """All that is wrong, each with its place."""
    allowed = target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=False)
    if not spec.to:
        yield Violation("spec.to", "must have at least one note", "required")
    for index, entry in enumerate(spec.to):
        path = item("spec.to", index)
        kinds = ("Mesh", *target_ref.DESTINATIONS)
        yield from target_ref.violations(entry.target_ref, child(path, "targetRef"), kinds)
        yield from _conf(entry.default, child(path, "default"))


def _conf(conf: NoteConf, path: str) -> Iterator[Violation]:
    if conf == NoteConf():
        yield Violation(
            path, "must say something: owner, runbook, patience, maintenance or appendLinks", "required"
        )
    if conf.runbook is not None and not conf.runbook.startswith("https://"):
        yield Violation(child(path, "runbook"), "must begin with https://", "format")
    if conf.patience is not None and duration.seconds(conf.patience) <= 0:
        yield Violation(child(path, "patience"), "must be more than 0s", "range")
    window = conf.maintenance or NoteMaintenance()
    at = child(path, "maintenance")
    if window.start is not None and not _CLOCK.fullmatch(window.start):
        yield Violation(child(at, "start"), 'must be a time of day, such as "02:00"', "format")
    if window.duration is not None and not 0 < duration.seconds(window.duration) <= _DAY_SECONDS:
        yield Violation(child(at, "duration"), "must be more than 0s and at most 24h", "range")


def warn(spec: MeshNoteSpec, _context: ValidationContext) -> Iterator[str]:
    """What is legal, and perhaps not meant."""
    yield from target_ref.warnings(spec.target_ref)
    for index, entry in enumerate(spec.to):
        if entry.target_ref.kind == "Mesh" and entry.default.maintenance is not None:
            yield f"spec.to[{index}].default.maintenance: every service of the mesh is announced to be away"


_MUTATION = "envoy.filters.http.header_mutation"


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """What a note changes for calls to a destination's port, or through one of its routes."""
    overlay: dict[str, Json] = {}
    if context.is_http and conf.get("owner"):
        overlay["http_filters"] = {_MUTATION: _owner_header(conf["owner"])}
    if context.is_http and conf.get("patience"):
        overlay["route_action"] = {"timeout": proto_json.seconds(conf["patience"])}
    return overlay


def _owner_header(owner: str) -> Json:
    """The configuration of Envoy's filter that writes headers; see its documentation for the fields."""
    header = {"key": "x-service-owner", "value": owner.replace("%", "%%")}  # else Envoy reads a variable
    added = {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    return proto_json.typed(
        "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        mutations={"response_mutations": [added]},
    )


KIND = Kind(
    name="MeshNote",
    plural="meshnotes",
    short="mn",
    doc=__doc__,
    spec=MeshNoteSpec,
    sync=POLICY,
    policy=Policy(has_to=True, hooks=PolicyHooks(outbound=outbound)),
    validate=validate,
    warn=warn,
)
POLICIES = (KIND,)
