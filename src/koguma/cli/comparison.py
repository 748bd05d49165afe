"""Comparison: a stored object and the one in a file, line by line, without what only the server writes."""

import difflib
from collections.abc import Iterator
from typing import Any, Final

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
# What says which object it is: the server found it, so what a file leaves out is no difference.
_IDENTITY: Final = ("type", "mesh", "name", "namespace")
_OUTSIDE: Final = (*_IDENTITY, "labels", "apiVersion", "kind", "metadata")


def lines(title: str, stored: Json, written: Json, kind: Kind | None) -> Iterator[str]:
    """The unified diff of one object; None on either side stands for nothing. Secrets are masked."""
    before = None if stored is None else _bare(stored)
    after = None if written is None else _completed(_bare(written), before or {})
    after = ordered(_filled(after, before, kind), before)
    if kind is not None and kind.admin_only:
        before, after = _masked(before, kind), _marked_payload(before, after)
    elif kind is not None:
        shown = None if after is None else _differing(before, after, admission.masked_document(after, kind))
        before, after = None if before is None else admission.masked_document(before, kind), shown
    found = list(
        difflib.unified_diff(_text(before), _text(after), f"stored {title}", f"given {title}", lineterm="")
    )
    yield from map(_painted, found)
    if not found:
        yield f"{title}: would be written again; only what the server computes changes"


def _bare(value: Json) -> dict[str, Json]:
    """An object without what the server alone writes."""
    bare = {name: part for name, part in value.items() if name not in _COMPUTED}
    if isinstance(bare.get("metadata"), dict):
        bare["metadata"] = {k: v for k, v in bare["metadata"].items() if k not in _COMPUTED_METADATA}
    return bare


def _completed(written: dict[str, Json], stored: dict[str, Json]) -> dict[str, Json]:
    """What a file says, with what an update leaves as it is."""
    inside = "metadata" if "metadata" in written else None
    mine = dict(written[inside]) if inside else dict(written)
    theirs = (stored.get(inside) or {}) if inside else stored
    mine |= {name: theirs[name] for name in _IDENTITY if name in theirs}
    kept = {name: value for name, value in (theirs.get("labels") or {}).items() if name in _COMPUTED_LABELS}
    both = {**kept, **(mine.get("labels") or {})}
    if both:
        mine["labels"] = both
    return {**written, inside: mine} if inside else mine


def _filled(written: Json, stored: Json, kind: Kind | None) -> Json:
    """What a file says, with what the server decides in its place, as the states that probes find."""
    if written is None or stored is None or kind is None:
        return written
    if kind.inline and "metadata" not in written:
        return kind.filled(written, stored)
    spec = written.get("spec")
    return {**written, "spec": kind.filled(spec, stored.get("spec"))} if isinstance(spec, dict) else written


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
    """A masked value that still says where it differs."""
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
    """What was masked, with a word where the value behind the mask is another one."""
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
