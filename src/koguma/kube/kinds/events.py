"""Events: what happened to an object, told by whoever saw it, and kept for a short time.

They are stored as the core group writes them. The group events.k8s.io serves the same objects with other
words for the same things; `NEWER` describes that version, and `CONVERTER` converts between the two without
loss.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from koguma.kube import field_errors, times
from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Int32, ObjectReference, Time
from koguma.kube.registry import Converter
from koguma.model.kind import Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

_WORDS_MAX: Final = 128
_MESSAGE_MAX: Final = 1024
_TYPES: Final = ("Normal", "Warning")
_EVERYWHERE: Final = ("default", "kube-system")  # where events about things without a namespace go
_MISMATCH: Final = "does not match event.namespace"


class EventSource(Spec):
    """Who saw it, in the older words."""

    component: Annotated[str | None, doc("The program.")] = None
    host: Annotated[str | None, doc("Where it runs.")] = None


class EventSeries(Spec):
    """Several events that are told as one."""

    count: Annotated[Int32 | None, doc("How many so far.")] = None
    last_observed_time: Annotated[Time | None, doc("When the last one happened, to the microsecond.")] = None


class EventSpec(Spec):
    """What happened, to what, and who says so."""

    involved_object: Annotated[ObjectReference | None, doc("What it happened to."), parts.ATOMIC] = None
    reason: Annotated[str | None, doc("Why, as one word for machines.")] = None
    message: Annotated[str | None, doc("What happened, in a sentence.")] = None
    source: Annotated[EventSource | None, doc("Who saw it, in the older words.")] = None
    first_timestamp: Annotated[Time | None, doc("When it was first seen.")] = None
    last_timestamp: Annotated[Time | None, doc("When it was last seen.")] = None
    count: Annotated[Int32 | None, doc("How often it was seen.")] = None
    type: Annotated[str | None, doc("Normal or Warning; others may come.")] = None
    event_time: Annotated[Time | None, doc("When it happened, to the microsecond.")] = None
    series: Annotated[EventSeries | None, doc("The series that it stands for.")] = None
    action: Annotated[str | None, doc("What was done or failed.")] = None
    related: Annotated[ObjectReference | None, doc("A second object that it is about."), parts.ATOMIC] = None
    reporting_component: Annotated[str | None, doc("The controller that saw it, such as koguma.io/cp.")] = (
        None
    )
    reporting_instance: Annotated[str | None, doc("Which run of that controller.")] = None


class NewerEventSpec(Spec):
    """What happened, to what, and who says so, in the words of events.k8s.io."""

    event_time: Annotated[Time | None, doc("When it happened, to the microsecond.")] = None
    series: Annotated[EventSeries | None, doc("The series that it stands for.")] = None
    reporting_controller: Annotated[str | None, doc("The controller that saw it, such as koguma.io/cp.")] = (
        None
    )
    reporting_instance: Annotated[str | None, doc("Which run of that controller.")] = None
    action: Annotated[str | None, doc("What was done or failed.")] = None
    reason: Annotated[str | None, doc("Why, as one word for machines.")] = None
    regarding: Annotated[ObjectReference | None, doc("What it happened to."), parts.ATOMIC] = None
    related: Annotated[ObjectReference | None, doc("A second object that it is about."), parts.ATOMIC] = None
    note: Annotated[str | None, doc("What happened, in a sentence.")] = None
    type: Annotated[str | None, doc("Normal or Warning; others may come.")] = None
    deprecated_source: Annotated[EventSource | None, doc("Who saw it, in the core group's words.")] = None
    deprecated_first_timestamp: Annotated[Time | None, doc("When it was first seen.")] = None
    deprecated_last_timestamp: Annotated[Time | None, doc("When it was last seen.")] = None
    deprecated_count: Annotated[Int32 | None, doc("How often it was seen.")] = None


# The core group's word and that of events.k8s.io; all other fields are called the same in both.
_NEWER: Final[Mapping[str, str]] = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_OLDER: Final[Mapping[str, str]] = {newer: older for older, newer in _NEWER.items()}
_DEPRECATED: Final = tuple(name for name in _OLDER if name.startswith("deprecated"))


def from_storage(spec: Json) -> Json:
    """An event of the core group in the words of events.k8s.io."""
    return _renamed(spec, _NEWER)


def to_storage(spec: Json) -> Json:
    """An event of events.k8s.io in the words of the core group."""
    return _renamed(spec, _OLDER)


def _renamed(spec: Json, words: Mapping[str, str]) -> Json:
    if not isinstance(spec, dict):
        return spec
    return {words.get(name, name): value for name, value in spec.items()}


def refusals(spec: Json) -> Iterator[Violation]:
    """What events.k8s.io does not take, though the core group does; older events may be updated there."""
    if not isinstance(spec, dict) or any(spec.get(name) for name in _DEPRECATED):
        return
    if not spec.get("eventTime"):
        yield field_errors.required("eventTime")
    if spec.get("type") not in _TYPES:
        yield field_errors.invalid("type", "", f"has invalid value: {spec.get('type') or ''}")
    series = spec.get("series")
    if isinstance(series, dict):
        count = series.get("count")
        if not isinstance(count, int) or count < 2:  # noqa: PLR2004 - one alone is no series
            yield field_errors.invalid("series.count", "", "should be at least 2", "range")
        if not series.get("lastObservedTime"):
            yield field_errors.required("series.lastObservedTime")


CONVERTER: Final = Converter(from_storage, to_storage, refusals)


def clean(spec: Json) -> Json:
    """Times in the two forms in which clients read them, and what Kubernetes always shows."""
    if not isinstance(spec, dict):
        return spec
    series = {"lastObservedTime": times.to_microseconds}
    read = parts.changed(
        spec,
        {
            "firstTimestamp": times.to_seconds,
            "lastTimestamp": times.to_seconds,
            "eventTime": times.to_microseconds,
            "series": lambda value: parts.changed(value, series),
        },
    )
    always = {"involvedObject": {}, "source": {}, "reportingComponent": "", "reportingInstance": ""}
    return {**always, **parts.without_nulls(read)}


def validate(spec: EventSpec, context: ValidationContext) -> Iterator[Violation]:
    """Events in another namespace than what they are about, and newer ones that leave out who and what."""
    about_namespace = (spec.involved_object or ObjectReference()).namespace or ""
    if spec.event_time is None:
        fits = about_namespace == context.namespace or (
            not about_namespace and context.namespace == "default"
        )
    else:
        fits = bool(about_namespace) or context.namespace in (
            *_EVERYWHERE,
            context.control_plane.system_namespace,
        )
    if not fits:
        yield field_errors.invalid("involvedObject.namespace", about_namespace, _MISMATCH, "namespace")
    yield from _time_violations(spec)
    if spec.event_time is not None:
        yield from _newer_violations(spec)


def _time_violations(spec: EventSpec) -> Iterator[Violation]:
    yield from parts.time_violations("firstTimestamp", spec.first_timestamp)
    yield from parts.time_violations("lastTimestamp", spec.last_timestamp)
    yield from parts.time_violations("eventTime", spec.event_time, micro=True)
    if spec.series is not None:
        at = "series.lastObservedTime"
        yield from parts.time_violations(at, spec.series.last_observed_time, micro=True)


def _newer_violations(spec: EventSpec) -> Iterator[Violation]:
    controller = spec.reporting_component or ""
    if not controller:
        yield field_errors.required("reportingController")
    else:
        for message in parts.qualified_name_messages(controller):
            yield field_errors.invalid("reportingController", controller, message)
    for name, text, limit in (
        ("reportingInstance", spec.reporting_instance, _WORDS_MAX),
        ("action", spec.action, _WORDS_MAX),
        ("reason", spec.reason, _WORDS_MAX),
        ("message", spec.message or "-", _MESSAGE_MAX),  # the one of these that may be left out
    ):
        if not text:
            yield field_errors.required(name)
        elif len(text.encode()) > limit:
            yield field_errors.invalid(name, "", f"can have at most {limit} characters", "size")


EVENT = Kind(
    name="Event",
    plural="events",
    set_name="Event.core",
    group="",
    doc="What happened to an object, told by whoever saw it, and kept for a short time.",
    spec=EventSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    short_history=True,
    clean=clean,
    validate=validate,
)

# The kind of the events.k8s.io endpoint; nothing is stored under its name.
NEWER: Final = Kind(
    name="Event",
    plural="events",
    set_name="Event.events.k8s.io",
    group="events.k8s.io",
    doc=EVENT.doc,
    spec=NewerEventSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    short_history=True,
)
