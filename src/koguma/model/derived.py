"""Derived resources: what the engine computes from stored objects, such as the MeshHTTPRoute of an HTTPRoute.

They act like stored ones and are never stored. The name in their key is `<kind>/<namespace>/<name>` of the
source, with `/<part>` where one source has several. No user can write such a name, since no name contains a
slash. What people and Envoy see of them is the source: its kind, its name, its paths.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from koguma.model import forms
from koguma.model.kri import InvalidKri, Kri
from koguma.model.resource import SLASH, Key, Resource

_PATH: Final = re.compile(r"\b(?:spec|conf|selectors)(?:\.[A-Za-z]+|\[\d+\])*")


class SourceName(NamedTuple):
    """What the key of a derived resource says of its source."""

    kind: str
    namespace: str
    name: str
    part: str = ""


class DerivedResource(Resource, frozen=True, kw_only=True, gc=False):
    """A resource, the stored object that it was computed from, and where its fields come from.

    `paths` has pairs of a path in this resource and the one in the source; what lies below a path has the
    same fields in both. `elsewhere` has the paths of what other stored objects say, with their `spec`.
    """

    source: Key
    paths: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[tuple[str, Key], ...] = ()

    def place(self, path: str) -> tuple[Key, str]:
        """The stored object and the path in it that a path in this resource comes from."""
        return place_elsewhere(self.elsewhere, path) or (self.source, self.source_path(path))

    def source_path(self, path: str) -> str:
        """The path in the source of a path in this resource."""
        return source_path(self.paths, path)

    def source_text(self, text: str) -> str:
        """A sentence about this resource with paths of the source."""
        return _PATH.sub(lambda found: self.source_path(found[0]), text)


def source_path(paths: Iterable[tuple[str, str]], path: str) -> str:
    """The path in a source: that of the nearest path above, and what is below it; `spec` where none is."""
    above = [pair for pair in paths if _is_at(pair[0], path)]
    if not above:
        return "spec"
    own, source = max(above, key=lambda pair: len(pair[0]))
    return source + path[len(own) :]


def place_elsewhere(elsewhere: Iterable[tuple[str, Key]], path: str) -> tuple[Key, str] | None:
    """The other object that says what stands at a path, and the path in that; None where none does."""
    return next(((key, f"spec{path[len(own) :]}") for own, key in elsewhere if _is_at(own, path)), None)


def _is_at(above: str, path: str) -> bool:
    return path.startswith(above) and path[len(above) : len(above) + 1] in ("", ".", "[")


def key(kind: str, mesh: str, zone: str, source: Key, part: str = "") -> Key:
    """The key of a derived resource; `part` tells several resources of one source apart."""
    word = source.kind.partition(".")[0]  # Kubernetes' kinds are stored under their name and group
    name = SLASH.join((word, source.namespace, source.name, *((part,) if part else ())))
    return Key(kind, mesh, zone, forms.key_namespace(source.namespace), name)


def source_name(derived: Key) -> SourceName | None:
    """What a key says of its source; None for the key of a stored object."""
    return SourceName(*derived.name.split(SLASH, 3)) if SLASH in derived.name else None


def display_name(any_key: Key) -> str:
    """The name by which a targetRef finds an object: `<name>.<namespace>` of a derived one's source."""
    source = source_name(any_key)
    return f"{source.name}.{source.namespace}" if source else any_key.name


def identifier(any_key: Key, short: str, section: str = "") -> Kri | None:
    """The KRI of an object, for a derived one with its source's kind and name; None where there is none."""
    source = source_name(any_key)
    word, name = (source.kind.lower(), source.name) if source else (short, any_key.name)
    try:
        return Kri(word, any_key.mesh, any_key.zone, any_key.namespace, name, section)
    except InvalidKri:  # written under older rules
        return None
