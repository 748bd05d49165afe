"""Comparison: the diff of a stored object and the one in a file, without the fields that the server sets."""

import difflib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from koguma.cli import output, terminal
from koguma.core import admission
from koguma.model import labels
from koguma.model.kind import Kind

Json = Any

MASK: Final = "*****"
CHANGED: Final = "***** (changed)"

_COMPUTED: Final = ("creationTime", "modificationTime", "kri", "snis", "status")
_COMPUTED_METADATA: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
_COMPUTED_LABELS: Final = (
    labels.DISPLAY_NAME,
    labels.ORIGIN,
    labels.MESH,
    labels.ZONE,
    labels.ENV,
    labels.NAMESPACE,
    labels.ROLE,
)
# The identity of the object: the server found it, so a field that the file omits is no difference.
_IDENTITY: Final = ("type", "mesh", "name", "namespace")
_OUTSIDE: Final = (*_IDENTITY, "labels", "apiVersion", "kind", "metadata")


class SideNames(NamedTuple):
    """What the two sides of a diff are called."""

    before: str
    after: str


FILES: Final = SideNames("stored", "given")


def lines(
    title: str, stored: Json, given: Json, kind: Kind | None, names: SideNames = FILES
) -> Iterator[str]:
    """The unified diff of one object; None where it does not exist on a side. Secrets are masked."""
    before = None if stored is None else without_computed(stored)
    after = None if given is None else _completed(without_computed(given), before or {})
    after = ordered(_filled(after, before, kind), before)
    if kind is not None and kind.admin_only:
        before, after = _masked(before, kind), _marked_payload(before, after)
    elif kind is not None:
        shown = None if after is None else _differing(before, after, admission.masked_document(after, kind))
        before, after = None if before is None else admission.masked_document(before, kind), shown
    diff = list(
        difflib.unified_diff(
            _text(before), _text(after), f"{names.before} {title}", f"{names.after} {title}", lineterm=""
        )
    )
    yield from map(_painted, diff)
    if not diff:
        yield f"{title}: would be written again; only what the server computes changes"


def without_computed(value: Json) -> dict[str, Json]:
    """An object without the fields that only the server sets."""
    kept = {name: part for name, part in value.items() if name not in _COMPUTED}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {k: v for k, v in kept["metadata"].items() if k not in _COMPUTED_METADATA}
    return kept


def _completed(given: dict[str, Json], stored: dict[str, Json]) -> dict[str, Json]:
    """The object of a file, with the identity and labels that an update leaves unchanged."""
    inside = "metadata" if "metadata" in given else None
    new = dict(given[inside]) if inside else dict(given)
    old = (stored.get(inside) or {}) if inside else stored
    new |= {name: old[name] for name in _IDENTITY if name in old}
    computed = {name: value for name, value in (old.get("labels") or {}).items() if name in _COMPUTED_LABELS}
    all_labels = {**computed, **(new.get("labels") or {})}
    if all_labels:
        new["labels"] = all_labels
    return {**given, inside: new} if inside else new


def _filled(given: Json, stored: Json, kind: Kind | None) -> Json:
    """The object of a file, with the fields in it that the server sets, such as the states of inbounds."""
    if given is None or stored is None or kind is None:
        return given
    if kind.inline and "metadata" not in given:
        return kind.filled(given, stored)
    spec = given.get("spec")
    return {**given, "spec": kind.filled(spec, stored.get("spec"))} if isinstance(spec, dict) else given


def ordered(value: Json, like: Json) -> Json:
    """The value with its keys in the order of another: the order of keys is no difference."""
    if isinstance(value, dict) and isinstance(like, dict):
        names = [*(name for name in like if name in value), *(name for name in value if name not in like)]
        return {name: ordered(value[name], like.get(name)) for name in names}
    if isinstance(value, list) and isinstance(like, list):
        return [ordered(part, like[i] if i < len(like) else None) for i, part in enumerate(value)]
    return value


def _masked(value: Json, kind: Kind) -> Json:
    if value is None:
        return None
    return {n: part if n in _OUTSIDE else admission.masked(part, kind) for n, part in value.items()}


def _marked_payload(before: Json, after: Json) -> Json:
    if after is None:
        return None
    was = before or {}
    return {n: part if n in _OUTSIDE else _marked(was.get(n), part) for n, part in after.items()}


def _marked(before: Json, after: Json) -> Json:
    """A value of a Secret, masked; a string that differs is marked as changed."""
    if isinstance(after, dict):
        was = before if isinstance(before, dict) else {}
        return {name: _marked(was.get(name), part) for name, part in after.items()}
    if isinstance(after, list):
        old = before if isinstance(before, list) else []
        return [_marked(old[i] if i < len(old) else None, part) for i, part in enumerate(after)]
    if not isinstance(after, str) or not after:
        return after
    return MASK if before in (None, after) else CHANGED


def _differing(before: Json, after: Json, masked: Json) -> Json:
    """The masked value, with a mark where the value behind the mask differs."""
    if isinstance(after, dict):
        was = before if isinstance(before, dict) else {}
        return {name: _differing(was.get(name), part, masked[name]) for name, part in after.items()}
    if isinstance(after, list):
        old = before if isinstance(before, list) else []
        return [_differing(old[i] if i < len(old) else None, part, masked[i]) for i, part in enumerate(after)]
    if masked == after:
        return after
    return MASK if before in (None, after) else CHANGED


def _text(value: Json) -> list[str]:
    return [] if value is None else output.yaml_text(value).splitlines()


def _painted(line: str) -> str:
    shown = terminal.printable(line)
    if line.startswith(("---", "+++")):
        return terminal.paint(shown, "bold")
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
    return terminal.paint(shown, colour) if colour else shown
