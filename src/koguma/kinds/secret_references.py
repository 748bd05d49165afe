"""Secret references: which Secrets an object of any kind refers to.

Derived from the schema: wherever a kind has a data source, it may name a Secret. A name counts also where the
source's `type`, or a switch beside it, makes it unused for now: whoever flips the switch later writes no new
reference. For the same reason, in the configuration of a plugin that is not installed everything counts that
looks like a reference: nobody is asked when it is installed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from koguma.kinds.data_source import DataSource, SecureDataSource, TlsSource
from koguma.model import typed_parts
from koguma.model.destination import SecretRef
from koguma.model.kind import Kind
from koguma.model.schema import Json
from koguma.model.violation import child, item

SOURCES: Final[typed_parts.PartTypes] = frozenset({DataSource, SecretRef, SecureDataSource, TlsSource})


# The field of a kind that chooses which proxies get its Secrets; those of other kinds go to all of a mesh.
_AUDIENCES: Final = {"MeshGateway": "selectors"}
_UNTYPED: Final[typed_parts.PartTypes] = frozenset({typed_parts.NAMED_BY})


class SecretReference(NamedTuple):
    """A Secret of the object's mesh, by its name, and the field that names it."""

    path: str
    name: str

    @property
    def purpose(self) -> tuple[str, str]:
        """What the reference is for. Moving an entry of a list, or writing another version, makes no new one.

        Kuma released a MeshExternalService with its certificates in `tls.verification`; in our version they
        stand beside it.
        """
        return re.sub(r"\[\d+\]", "[]", self.path).replace(".tls.verification.", ".tls."), self.name


def of(kind: Kind, spec: Json) -> tuple[SecretReference, ...]:
    """The references of a spec as it is stored, in the order of the schema's fields."""
    if not is_referring(kind):
        return ()
    root = "" if kind.inline else "spec"
    sources = typed_parts.parts_of(kind.spec, spec, SOURCES, root, kind.named_types)
    untyped = typed_parts.parts_of(kind.spec, spec, _UNTYPED, root, kind.named_types)
    return (
        *(reference for source in sources for reference in _named(source.value, source.path)),
        *(reference for config in untyped for reference in _anywhere(config.value, config.path)),
    )


def is_referring(kind: Kind) -> bool:
    """Whether objects of a kind can refer to Secrets."""
    return typed_parts.holds(kind.spec, SOURCES, kind.named_types)


def has_other_audience(kind: Kind, spec: Json, before: Json) -> bool:
    """Whether a spec may give its Secrets to proxies that did not get them by an earlier one."""
    field = _AUDIENCES.get(kind.name)
    if field is None:
        return False
    chosen = before.get(field) or ()
    return any(each not in chosen for each in spec.get(field) or ())


def _anywhere(value: Json, path: str) -> Iterator[SecretReference]:
    """What looks like a reference in JSON of which no type is known."""
    if isinstance(value, Mapping):
        yield from _named(value, path)
        for name, part in value.items():
            yield from _anywhere(part, child(path, str(name)))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _anywhere(part, item(path, index))


def _named(source: Mapping[str, Json], path: str) -> Iterator[SecretReference]:
    name = source.get("secret")
    if isinstance(name, str) and name:
        yield SecretReference(child(path, "secret"), name)
    ref = source.get("secretRef")
    name = ref.get("name") if isinstance(ref, Mapping) else None
    if isinstance(name, str) and name:
        yield SecretReference(child(path, "secretRef.name"), name)
