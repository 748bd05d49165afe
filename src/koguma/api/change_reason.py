"""Change reason: why something is written, as the writer says; it is stored with the change.

Any client sends it in the header `Koguma-Reason`, as UTF-8. kubectl cannot send headers; it has an annotation
of its own for this, `kubernetes.io/change-cause`, which counts where the write changes it: what it says stays
in the object, and is no reason for the next write.
"""

from typing import Final

from koguma.api.call import Call
from koguma.model.errors import Invalid
from koguma.model.resource import Resource
from koguma.model.violation import Violation

HEADER: Final = "Koguma-Reason"
CHARACTERS_MAX: Final = 1_000
CHANGE_CAUSE: Final = "kubernetes.io/change-cause"


def in_header(call: Call) -> str:
    """The reason in the header, refused where it is too long or no printable text."""
    text = (call.header(HEADER) or "").strip()
    if len(text) > CHARACTERS_MAX:
        long = f"must have at most {CHARACTERS_MAX} characters, this one has {len(text)}"
        raise Invalid([Violation(HEADER, long, "length")], "The reason is not valid")
    if not text.isprintable():  # control characters, and what is no UTF-8
        raise Invalid(
            [Violation(HEADER, "must be printable text, in UTF-8", "format")], "The reason is not valid"
        )
    return text


def of_object(call: Call, written: Resource, before: Resource | None) -> str:
    """The reason in the header, or else in kubectl's annotation where this write changes that."""
    text = in_header(call)
    if text:
        return text
    cause = written.annotations.get(CHANGE_CAUSE, "")
    is_new = before is None or before.annotations.get(CHANGE_CAUSE) != cause
    shown = "".join(c if c.isprintable() else " " for c in cause[:CHARACTERS_MAX])
    return shown.strip() if is_new else ""
