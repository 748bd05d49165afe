"""Written: what the objects in files are, before the server has seen them."""

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

Identity = tuple[str, str, tuple[str, ...]]  # kind, mesh, names under which it may be stored


def drafts(read: Sequence[Document]) -> list[Draft]:
    """The objects, in either form; all that is wrong with their outer shape is told at once."""
    kinds = kind_lookup.local_kinds()
    made: list[Draft] = []
    problems: list[str] = []
    for document in read:
        try:
            made.append(forms.read(document.value, kinds))
        except (Invalid, BadRequest) as error:
            for violation in error.violations or (Violation("", error.detail),):
                parts = inputs.place(document, violation.field), violation.field, violation.message
                problems.append(": ".join(filter(None, parts)))
    if problems:
        raise CommandFailure("the files name no objects that could be stored", tuple(problems))
    return made


def identities(read: Sequence[Document]) -> list[Identity]:
    """Which objects they are; one in a namespace may be stored under its short or its long name."""
    return [_identity(draft) for draft in drafts(read)]


def _identity(draft: Draft) -> Identity:
    wanted = identity.of(draft, ControlPlaneInfo())
    namespace, name = wanted.key.namespace, wanted.key.name
    names = (wanted.core_name, *((f"{name}.{namespace}", name) if namespace else ()))
    return draft.kind.name, wanted.key.mesh, tuple(dict.fromkeys(names))
