"""Lay: overlays over a skeleton. Maps are merged key by key, everything else is replaced."""

from collections.abc import Iterable, Mapping

from koguma.model.overlay import Overlay
from koguma.model.schema import Json

Parts = dict[str, Json]


def laid(under: Json, over: Json) -> Json:
    """One value over another."""
    if not isinstance(under, Mapping) or not isinstance(over, Mapping):
        return over
    merged = dict(under)
    for name, value in over.items():
        merged[name] = laid(merged[name], value) if name in merged else value
    return merged


def over_parts(skeleton: Mapping[str, Json], overlays: Iterable[Overlay]) -> Parts:
    """Overlays over the parts of a skeleton, in order; a part that the skeleton lacks comes new."""
    parts: Parts = dict(skeleton)
    for overlay in overlays:
        for name, value in overlay.items():
            parts[name] = laid(parts[name], value) if name in parts else value
    return parts
