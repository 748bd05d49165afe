"""Our exceptions. Each knows its HTTP status, so the API has one handler and no table.

KogumaError
├── BadRequest        400   the request itself cannot be read
├── Invalid           400   carries violations; the same request can never succeed
├── Unauthenticated   401   who are you
├── Forbidden         403   says which permission is missing
├── NotFound          404   the resource is not there
├── TooSlow           408   a body that does not come to its end
├── NotAllowed        405   this control plane does not do that, another one may
├── AlreadyExists     409   it is there
├── Conflict          409   somebody wrote first; read again and retry
├── NotAcceptable     406   a kind of answer that we do not give
├── PreconditionFailed 412  an If-Match of the caller does not hold
├── Gone              410   a watch asked for a revision that was compacted away
├── TooLarge          413   over a size limit, which the text names
├── UnsupportedMedia  415   a content type that we do not read
├── NotSupported      501   what is asked cannot do that, now or later
├── BadGateway        502   whom we asked for the caller gave no usable answer
├── Unavailable       503   passing; retry later is right
│   ├── StoreLost     503   the database does not answer, or takes no writes
│   └── StoreFull     507   there is no room to store anything more; the text says where
└── TooNew            504   a revision that is not written yet
"""

from collections.abc import Sequence
from typing import ClassVar

from koguma.model import violation
from koguma.model.violation import Violation


class KogumaError(Exception):
    """The outside refused. `detail` is for people; `title` overrides the operation's own where set.

    `violations` point at the places that the reader has to change, where there are such.
    """

    status: ClassVar[int] = 500
    title: str | None = None

    def __init__(
        self, detail: str, *, title: str | None = None, violations: Sequence[Violation] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.violations = violation.truncated(violations)
        if title is not None:
            self.title = title


class BadRequest(KogumaError):
    """The request cannot be read."""

    status = 400
    title = "Bad Request"


class Invalid(KogumaError):
    """What the user wrote breaks rules: all of them at once, in field order."""

    status = 400

    def __init__(
        self,
        violations: Sequence[Violation],
        detail: str = "Resource is not valid",
        *,
        title: str | None = None,
    ) -> None:
        super().__init__(detail, title=title, violations=violations)

    def __str__(self) -> str:
        sentences = [
            f"{v.field}: {v.message}" if v.rule != violation.MORE else v.message for v in self.violations
        ]
        return "; ".join(sentences) or self.detail


class Unauthenticated(KogumaError):
    """The credentials do not hold."""

    status = 401
    title = "Invalid authentication data"


class Forbidden(KogumaError):
    """The user is known and may not."""

    status = 403
    title = "Access Denied"


class NotFound(KogumaError):
    """There is no such object."""

    status = 404

    def __init__(
        self,
        detail: str = "Not found",
        *,
        title: str | None = None,
        violations: Sequence[Violation] = (),
    ) -> None:
        super().__init__(detail, title=title, violations=violations)


class GoneMeanwhile(NotFound):
    """An object that a write wanted to replace or delete as it was read was deleted in between."""


class NotAllowed(KogumaError):
    """The method is not for this path, or not for this kind on this control plane."""

    status = 405
    title = "Method not allowed"

    def __init__(self, detail: str, *, title: str | None = None, allowed: Sequence[str] = ("GET",)) -> None:
        super().__init__(detail, title=title)
        self.allowed = tuple(allowed)


class TooSlow(KogumaError):
    """The request did not come within its time."""

    status = 408
    title = "Request Timeout"


class AlreadyExists(KogumaError):
    """Something with this key or core name is stored already."""

    status = 409
    title = "Conflict"


class Conflict(KogumaError):
    """Somebody wrote first."""

    status = 409
    title = "Conflict"


class PreconditionFailed(KogumaError):
    """The caller's If-Match or If-None-Match does not hold."""

    status = 412
    title = "Precondition Failed"


class Gone(KogumaError):
    """The asked revision is older than the history that is kept."""

    status = 410
    title = "Gone"


class TooLarge(KogumaError):
    """Over a limit."""

    status = 413
    title = "Request Entity Too Large"


class UnsupportedMedia(KogumaError):
    """A content type that we do not read."""

    status = 415
    title = "NotSupported Media Type"


class NotSupported(KogumaError):
    """What the request is about has no such feature: another version of it may."""

    status = 501
    title = "Not Implemented"


class BadGateway(KogumaError):
    """Somebody whom we asked for the caller gave no answer that we can pass on."""

    status = 502
    title = "Bad Gateway"


class Unavailable(KogumaError):
    """Passing trouble of something that we need."""

    status = 503
    retry_seconds: ClassVar[int] = 1
    title = "Service unavailable"


class StoreLost(Unavailable):
    """The database does not answer, or takes no writes; the store logs when that begins and ends."""


class StoreFull(Unavailable):
    """There is no room to store anything more: a person has to make some, and then the same request works."""

    status = 507
    title = "Insufficient Storage"


class NotAcceptable(KogumaError):
    """The caller takes no kind of answer that we can give."""

    status = 406


class TooNew(KogumaError):
    """Somebody asks for a revision that this control plane has not seen."""

    status = 504
