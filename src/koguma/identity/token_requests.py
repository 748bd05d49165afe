"""Token requests: the bodies of requests for tokens, and their validation.

The bodies of `POST /tokens/user`, `/tokens/dataplane` and `/tokens/zone`, with Kuma's fields and messages.
Unknown fields are rejected, because a mistyped `validFor` would give a token of ten years.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Final, Literal, TypeVar, get_args

from koguma.identity.claims import DataplaneClaims, UserClaims, ZoneClaims
from koguma.model import duration
from koguma.model.errors import Invalid
from koguma.model.schema import Checker, Json, Spec, doc, read
from koguma.model.violation import Violation

TEN_YEARS: Final = timedelta(days=3650)

ZoneScope = Literal["ingress", "egress", "cp"]
SCOPES: Final[tuple[str, ...]] = get_args(ZoneScope)

_PROXY_TYPES: Final = ("dataplane", "ingress", "egress")

_ValidFor = Annotated[str, doc("How long the token holds, as 24h or 1h30m.", max_length=64)]


class UserTokenRequest(Spec):
    """A token for a user of the API."""

    name: Annotated[str, doc("The user's name.")] = ""
    groups: Annotated[tuple[str, ...] | None, doc("The groups that the user is in.")] = None
    valid_for: _ValidFor = ""

    @property
    def lifetime(self) -> timedelta:
        """The lifetime of the token."""
        return _lifetime(self.valid_for)

    @property
    def claims(self) -> UserClaims:
        """The claims of the token."""
        return UserClaims(name=self.name, groups=self.groups or ())


class DataplaneTokenRequest(Spec):
    """A token for a proxy; what is left out is not bound."""

    name: Annotated[str, doc("The only proxy that may use it.")] = ""
    mesh: Annotated[str, doc("The mesh of the proxy.")] = ""
    tags: Annotated[
        Mapping[str, tuple[str, ...]] | None, doc("Values that the proxy's tags must be among.")
    ] = None
    type: Annotated[str, doc("The type of proxy: dataplane, ingress or egress.")] = ""
    valid_for: _ValidFor = ""
    workload: Annotated[str, doc("The only workload that the proxy may stand for.")] = ""

    @property
    def lifetime(self) -> timedelta:
        """The lifetime of the token; ten years by default."""
        return _lifetime(self.valid_for)

    @property
    def claims(self) -> DataplaneClaims:
        """The claims of the token."""
        return DataplaneClaims(
            name=self.name, mesh=self.mesh, tags=self.tags or {}, type=self.type, workload=self.workload
        )


class ZoneTokenRequest(Spec):
    """A token for what a zone runs."""

    zone: Annotated[str, doc("The zone; any where empty.")] = ""
    scope: Annotated[tuple[ZoneScope, ...] | None, doc("What may use the token; all by default.")] = None
    valid_for: _ValidFor = ""

    @property
    def lifetime(self) -> timedelta:
        """The lifetime of the token; ten years by default."""
        return _lifetime(self.valid_for)

    @property
    def claims(self) -> ZoneClaims:
        """The claims of the token."""
        return ZoneClaims(zone=self.zone, scope=SCOPES if self.scope is None else self.scope)


def user_request(body: Json) -> UserTokenRequest:
    """The body of a request for a user token; Invalid if it has violations."""
    return _checked(UserTokenRequest, _CHECK_USER, user_violations, body)


def dataplane_request(body: Json) -> DataplaneTokenRequest:
    """The body of a request for a dataplane token; Invalid if it has violations."""
    return _checked(DataplaneTokenRequest, _CHECK_DATAPLANE, dataplane_violations, body)


def zone_request(body: Json) -> ZoneTokenRequest:
    """The body of a request for a zone token; Invalid if it has violations."""
    return _checked(ZoneTokenRequest, _CHECK_ZONE, zone_violations, body)


def user_violations(request: UserTokenRequest) -> Iterator[Violation]:
    """The violations of a request that fits the schema."""
    if not request.name:
        yield Violation("name", "cannot be empty", "required")
    if not request.valid_for:
        yield Violation("validFor", "cannot be empty or nil", "required")
    yield from _valid_for(request.valid_for)


def dataplane_violations(request: DataplaneTokenRequest) -> Iterator[Violation]:
    """The violations of a request that fits the schema."""
    if not request.mesh:
        yield Violation("mesh", "cannot be empty", "required")
    yield from _valid_for(request.valid_for)
    if request.type and request.type not in _PROXY_TYPES:
        yield Violation("type", f"{request.type} is not a valid proxy type", "enum")


def zone_violations(request: ZoneTokenRequest) -> Iterator[Violation]:
    """The violations of a request that fits the schema."""
    if request.scope is not None and not request.scope:
        yield Violation("scope", "cannot be empty", "required")
    yield from _valid_for(request.valid_for)


_CHECK_USER = Checker(UserTokenRequest)
_CHECK_DATAPLANE = Checker(DataplaneTokenRequest)
_CHECK_ZONE = Checker(ZoneTokenRequest)

R = TypeVar("R", bound=Spec)


def _checked(type_: type[R], check: Checker, rules: Callable[[R], Iterator[Violation]], body: Json) -> R:
    violations = list(check(body))
    if not violations:
        request: R = read(type_, body)
        violations = list(rules(request))
        if not violations:
            return request
    raise Invalid(violations, title="Invalid request")


def _lifetime(valid_for: str) -> timedelta:
    return timedelta(microseconds=duration.nanoseconds(valid_for) // 1000) if valid_for else TEN_YEARS


def _valid_for(text: str) -> Iterator[Violation]:
    if text and not duration.is_duration(text):
        yield Violation("validFor", f"is invalid: {_go_error(text)}", "format")
    elif text and duration.nanoseconds(text) <= 0:
        yield Violation("validFor", "must have a positive value", "range")


_TERM = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]*)")


def _go_error(text: str) -> str:
    """The error of Go's parser for an invalid duration, which Kuma repeats."""
    quoted, at = _go_quoted(text), 1 if text[0] in "+-" else 0
    while term := _TERM.match(text, at):
        if not term[1]:
            return f"time: missing unit in duration {quoted}"
        if not duration.is_duration(f"1{term[1]}"):
            return f"time: unknown unit {_go_quoted(term[1])} in duration {quoted}"
        at = term.end()
    return f"time: invalid duration {quoted}"


def _go_quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if " " <= c < "\x80" else _go_escaped(c) for c in plain) + '"'


def _go_escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
