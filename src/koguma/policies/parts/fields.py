"""Fields: shapes and checks that several policies share.

Counts, percentages, durations, addresses, header lists, references to a telemetry collector, and the
walk over a policy's lists. A check yields nothing for a value that is absent; its words are Kuma's.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Final, Literal, Protocol, TypeVar

from msgspec import Meta

from koguma.model import client_match, duration, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import ValidationContext
from koguma.model.schema import IntOrString, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.typed_parts import PROXY_FILE
from koguma.model.violation import Violation, child, item

MUST_BE_DEFINED: Final = "must be defined"
MUST_NOT_BE_DEFINED: Final = "must not be defined"
MUST_NOT_BE_EMPTY: Final = "must not be empty"
BAD_PORT: Final = "port must be a valid (1-65535)"
FROM_BESIDE_RULES: Final = "field 'from' must be empty when 'rules' is defined"
# What a list for calls of clients of the mesh does where only a gateway is selected.
NOT_ON_GATEWAYS: Final = "has no effect on a gateway, whose clients are not of the mesh"
FROM_IS_DEPRECATED: Final = "'from' field is deprecated, use 'rules' instead"

PORT_MAX: Final = 65535
_PERCENT_MAX: Final = 100
_STATUS_MIN: Final = 100
_STATUS_MAX: Final = 599

# A file that Envoy writes on the machine of a proxy.
ProxyFile = Annotated[str, Meta(extra={PROXY_FILE: True})]
Count = Annotated[int, Meta(ge=0, le=4294967295)]
HeaderName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[a-z0-9!#$%&'*+\-.^_\x60|~]+\Z")]


class Header(Spec):
    """One header with its value."""

    name: Annotated[HeaderName, doc("The header's name, in lower case.")]
    value: Annotated[str, doc("The value; several are separated by commas.")]


class HeaderValues(Spec):
    """Headers that are written into a message."""

    set: Annotated[tuple[Header, ...], doc("Replace what the message has.", max_length=16)] = ()
    add: Annotated[tuple[Header, ...], doc("Stand beside what the message has.", max_length=16)] = ()


class CollectorRef(Spec):
    """A reference to a MeshOpenTelemetryBackend, where the address of a collector stands once for all."""

    kind: Annotated[Literal["MeshOpenTelemetryBackend"], doc("What is referenced.")]
    labels: Annotated[Mapping[str, str] | None, doc("Its labels; of several that fit, the oldest.")] = None


_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_NUMBER_LENGTH_MAX: Final = 64


def number(value: IntOrString) -> Decimal | None:
    """A number that was written as such or as text; None where the text is no number."""
    if isinstance(value, int):
        return Decimal(value)
    if len(value) > _NUMBER_LENGTH_MAX or not _NUMBER.fullmatch(value):
        return None
    return Decimal(value)


def percent(value: IntOrString | None, path: str) -> Iterator[Violation]:
    """A share between 0 and 100 that may have decimals."""
    if value is None:
        return
    share = number(value)
    if share is None:
        yield Violation(path, "string must be a valid number", "number")
    elif not 0 <= share <= _PERCENT_MAX:
        yield Violation(path, "must be in inclusive range [0.0, 100.0]", "range")


def percent_whole(value: int | None, path: str) -> Iterator[Violation]:
    """A share between 0 and 100 without decimals."""
    if value is not None and not 0 <= value <= _PERCENT_MAX:
        yield Violation(path, "must be in inclusive range [0, 100]", "range")


def positive(value: int | None, path: str) -> Iterator[Violation]:
    """A count of one or more."""
    if value is not None and value <= 0:
        yield Violation(path, "must be greater than 0", "range")


def not_negative_duration(value: str | None, path: str) -> Iterator[Violation]:
    """A duration of zero or more."""
    if value is not None and duration.nanoseconds(value) < 0:
        yield Violation(path, "must not be negative when defined", "range")


def positive_duration(value: str | None, path: str) -> Iterator[Violation]:
    """A duration that passes."""
    if value is not None and duration.nanoseconds(value) <= 0:
        yield Violation(path, "must be greater than zero when defined", "range")


def status(value: int, path: str) -> Iterator[Violation]:
    """An HTTP status code."""
    if not _STATUS_MIN <= value <= _STATUS_MAX:
        yield Violation(path, f"must be in inclusive range [{_STATUS_MIN}, {_STATUS_MAX}]", "range")


def port(value: int | None, path: str) -> Iterator[Violation]:
    """A port number."""
    if value is not None and not 1 <= value <= PORT_MAX:
        yield Violation(path, BAD_PORT, "range")


def of_the_machine(at: str, context: ValidationContext, instead: str) -> Iterator[Violation]:
    """That a field would read files or variables of the machines of proxies, where that is not allowed."""
    # Else whoever may write a policy could read the files and secrets of every proxy that it reaches.
    if not context.is_system:
        where = f"one without a namespace or in {context.control_plane.system_namespace}"
        yield Violation(at, f"can only be set by a system policy, {where}", "forbidden")
    elif not context.control_plane.allow_proxy_data_sources:
        message = "this control plane does not let policies read a proxy's files or environment"
        yield Violation(at, f"{message}; {instead}", "forbidden")


def is_path(text: str) -> bool:
    """Whether `text` names a file from the root."""
    return text.startswith("/") and "\0" not in text


_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>\d{1,5}))?", re.ASCII)


def is_address(text: str, *, needs_port: bool = False) -> bool:
    """Whether `text` is `host:port`, where the host is a name, an IPv4, or an IPv6 in brackets."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return False
    if not (_is_ipv6(match["six"]) if match["six"] else _is_host(match["host"])):
        return False
    if match["port"] is None:
        return not needs_port
    return 1 <= int(match["port"]) <= PORT_MAX


def is_collector_address(text: str) -> bool:
    """Whether `text` says where an OpenTelemetry collector is.

    As in Kuma the port may be left out, but then the host must be more than one word: a lone word is more
    often a mistake than a host.
    """
    return is_address(text) and any(mark in text for mark in ".:")


# Unlike in the names of objects, capitals and `_` are legal in host names.
_HOST_LABEL = re.compile(r"\w([\w-]{0,61}\w)?", re.ASCII)


def _is_host(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    if all(label.isdecimal() for label in labels):
        return _is_ipv4(text)
    return all(_HOST_LABEL.fullmatch(label) for label in labels)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def collector(endpoint: str | None, ref: CollectorRef | None, path: str) -> Iterator[Violation]:
    """An OpenTelemetry collector: its address in place, or a reference to where the address stands."""
    if endpoint is None and ref is None:
        yield Violation(
            child(path, "endpoint"), f"{MUST_BE_DEFINED}, or 'backendRef' in its place", "required"
        )
    if endpoint is not None and ref is not None:
        yield Violation(path, "'endpoint' and 'backendRef' exclude each other; keep one", "exclusive")
    if endpoint == "":
        yield Violation(child(path, "endpoint"), MUST_NOT_BE_EMPTY, "required")
    if ref is not None and not ref.labels:
        at = child(child(path, "backendRef"), "labels")
        yield Violation(at, f"must be set with kind {ref.kind}", "required")


Conf = TypeVar("Conf")
Conf_co = TypeVar("Conf_co", covariant=True)


class Entry(Protocol[Conf_co]):
    """An item of `to` or `from`: whom it is about, and what holds for them."""

    @property
    def target_ref(self) -> TargetRef:
        """Whom it is about."""

    @property
    def default(self) -> Conf_co:
        """What holds for them."""


def entries(
    field: str,
    listed: Sequence[Entry[Conf]],
    kinds: Collection[str],
    conf: Callable[[Conf, str], Iterator[Violation]],
) -> Iterator[Violation]:
    """What is wrong with the items of `to` or `from`: each one's reference, then its configuration."""
    for index, entry in enumerate(listed):
        path = item(field, index)
        yield from target_ref.violations(entry.target_ref, child(path, "targetRef"), kinds)
        yield from conf(entry.default, child(path, "default"))


def matches(
    client_matches: Sequence[ClientMatch], path: str, *, needs_one: bool = False
) -> Iterator[Violation]:
    """What is wrong with a list of client matches."""
    for index, match in enumerate(client_matches):
        yield from client_match.violations(match, item(path, index), needs_one=needs_one)
