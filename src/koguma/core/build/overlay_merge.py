"""Overlay merge: overlays merged into a skeleton. Maps are merged key by key, all else is replaced."""

from collections.abc import Iterable, Mapping

from koguma.model.overlay import Overlay
from koguma.model.schema import Json

Parts = dict[str, Json]


def merged(base: Json, overlay: Json) -> Json:
    """A value with an overlay merged into it; both stay unchanged."""
    if not isinstance(base, Mapping) or not isinstance(overlay, Mapping):
        return overlay
    result = dict(base)
    for name, value in overlay.items():
        result[name] = merged(result[name], value) if name in result else value
    return result


def with_overlays(skeleton: Mapping[str, Json], overlays: Iterable[Overlay]) -> Parts:
    """The parts of a skeleton with overlays merged in, in order; overlays may add parts."""
    parts: Parts = dict(skeleton)
    for overlay in overlays:
        for name, value in overlay.items():
            parts[name] = merged(parts[name], value) if name in parts else value
    return parts
