"""File identities: kind, mesh and name of the objects in files, without a server."""

from collections.abc import Sequence

from koguma.cli import inputs, kind_lookup
from koguma.cli.failures import CommandFailure
from koguma.core import identity
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.documents import Document
from koguma.model.errors import BadRequest, Invalid
from koguma.model.forms import Draft
from koguma.model.violation import Violation

FileIdentity = tuple[str, str, tuple[str, ...]]  # kind, mesh, and the names that it may be stored under


def drafts(read: Sequence[Document]) -> list[Draft]:
    """The objects, in either form; one failure lists everything that cannot be read."""
    kinds = kind_lookup.local_kinds()
    read_drafts: list[Draft] = []
    problems: list[str] = []
    for document in read:
        try:
            read_drafts.append(forms.read(document.value, kinds))
        except (Invalid, BadRequest) as error:
            for violation in error.violations or (Violation("", error.detail),):
                parts = inputs.place(document, violation.field), violation.field, violation.message
                problems.append(": ".join(filter(None, parts)))
    if problems:
        raise CommandFailure("the files name no objects that could be stored", tuple(problems))
    return read_drafts


def identities(read: Sequence[Document]) -> list[FileIdentity]:
    """The identity of each object; one in a namespace may be stored with or without it in its name."""
    return [_identity(draft) for draft in drafts(read)]


def _identity(draft: Draft) -> FileIdentity:
    own = identity.of(draft, ControlPlaneInfo())
    namespace, name = own.key.namespace, own.key.name
    names = (own.core_name, *((f"{name}.{namespace}", name) if namespace else ()))
    return draft.kind.name, own.key.mesh, tuple(dict.fromkeys(names))
