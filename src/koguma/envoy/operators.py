"""Operators: the command operators of Envoy's format strings, such as `%REQ(X-A)%`.

Envoy rejects a whole listener for an operator that it does not know, so they are checked before.
"""

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.envoy import cel

_WITHOUT_ARGUMENT: Final = """
    ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS
    CUSTOM_FLAGS DOWNSTREAM_CX_RTT DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED
    DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS
    DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS
    DOWNSTREAM_DIRECT_REMOTE_PORT DOWNSTREAM_HANDSHAKE_DURATION DOWNSTREAM_HEADER_BYTES_RECEIVED
    DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID
    DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN DOWNSTREAM_LOCAL_IP_SAN
    DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN
    DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1 DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256
    DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN DOWNSTREAM_PEER_EMAIL_SAN
    DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN
    DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL
    DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN
    DOWNSTREAM_REMOTE_ADDRESS DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_GROUP
    DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION DOWNSTREAM_TRANSPORT_FAILURE_REASON
    DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION FILTER_CHAIN_NAME GRPC_STATUS_NUMBER
    HOSTNAME LISTENER_NAME LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PROTOCOL REQUEST_DURATION
    REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS
    RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION ROUNDTRIP_DURATION
    ROUTE_NAME ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US SPAN_ID STREAM_ID TLS_JA3_FINGERPRINT
    TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID
    UPSTREAM_CONNECTION_IDS_ATTEMPTED UPSTREAM_CONNECTION_POOL_READY_DURATION
    UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
    UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST
    UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAME
    UPSTREAM_HOST_NAMES_ATTEMPTED UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAME_WITHOUT_PORT
    UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_CLOSE_REASON UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN
    UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN UPSTREAM_PEER_IP_SAN
    UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS
    UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID UPSTREAM_REMOTE_PORT UPSTREAM_REQUEST_ATTEMPT_COUNT
    UPSTREAM_SERVER_NAME UPSTREAM_TLS_CIPHER UPSTREAM_TLS_GROUP UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION
    UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT
    VIRTUAL_CLUSTER_NAME
"""
_OPTIONAL_ARGUMENT: Final = """
    DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT
    DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_PEER_CERT_V_END DOWNSTREAM_PEER_CERT_V_START
    DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT EMIT_TIME EMIT_TIME_LOCAL GRPC_STATUS PATH QUERY_PARAMS
    REQUESTED_SERVER_NAME RESPONSE_CODE_DETAILS START_TIME START_TIME_LOCAL
    UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_PEER_CERT_V_END UPSTREAM_PEER_CERT_V_START
    UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT
"""
_WITH_ARGUMENT: Final = """
    CEL CLUSTER_METADATA COALESCE COMMON_DURATION DYNAMIC_METADATA ENVIRONMENT FILTER_STATE METADATA
    QUERY_PARAM REQ REQUEST_HEADER RESP RESPONSE_HEADER RESPONSE_TRAILER STREAM_INFO_REQ TRAILER
    UPSTREAM_FILTER_STATE UPSTREAM_METADATA XFCC_VALUE
"""

# Whether a command takes an argument in parentheses: never, always, or optionally.
_ARGUMENT: Final[dict[str, bool | None]] = {
    **dict.fromkeys(_WITHOUT_ARGUMENT.split(), False),
    **dict.fromkeys(_WITH_ARGUMENT.split(), True),
    **dict.fromkeys(_OPTIONAL_ARGUMENT.split(), None),
}
# Commands whose value can be truncated, as in `%REQ(X-A):5%`.
_TRUNCATABLE: Final = frozenset(
    (
        *("CEL", "COALESCE", "DYNAMIC_METADATA", "ENVIRONMENT", "FILTER_STATE", "METADATA", "PATH"),
        *("QUERY_PARAM", "QUERY_PARAMS", "REQ", "REQUEST_HEADER", "RESP", "RESPONSE_HEADER"),
        *("RESPONSE_TRAILER", "STREAM_INFO_REQ", "TRAILER", "UPSTREAM_FILTER_STATE", "XFCC_VALUE"),
    )
)
_LENGTH_MAX: Final = 2**64 - 1
_SIMILARITY: Final = 0.8  # similarity from which a name is suggested
_COMMAND: Final = re.compile(r"%(?:%|([A-Z0-9_]+)(?:\(([^\r\n]*?)\))?(?::([0-9]+))?%)")
_HEADER: Final = re.compile(r"(?::[\w!#$%&'*+.^`|~-]+|[\w!#$%&'*+.^`|~-]*)", re.ASCII)


def problems(text: str, placeholders: Collection[str] = ()) -> Iterator[str]:
    """Why Envoy would reject a format string, a sentence for each problem.

    `placeholders` are commands that the control plane replaces before Envoy gets the text.
    """
    for part in parts(text):
        if isinstance(part, Command):
            if not part.is_one_of(placeholders):
                yield from _problem(part, placeholders)
        elif part.startswith("%") and part != PERCENT:
            rest = part[1:21]
            yield f'has a "%" before "{rest}" that begins no command; write "%%" for the sign'


_ENVIRONMENT: Final = "ENVIRONMENT"


def reads_environment(text: str) -> bool:
    """Whether a format string reads Envoy's environment, also inside of COALESCE."""
    commands = [part for part in parts(text) if isinstance(part, Command)]
    names = {part.name for part in commands}
    # The argument of COALESCE is JSON, whose texts may be escaped; no other argument can name an operator.
    coalesced = (part.argument or "" for part in commands if part.name == "COALESCE")
    return _ENVIRONMENT in names or any(map(_coalesces_environment, coalesced))


def _coalesces_environment(argument: str) -> bool:
    try:
        # As pairs: parsers differ in which of two fields with one name they take.
        return _ENVIRONMENT in json.dumps(json.loads(argument, object_pairs_hook=list))
    except (ValueError, RecursionError):
        return True  # Envoy's parser may accept it; better refused


class Command(msgspec.Struct, frozen=True):
    """A command operator: its name, its argument, and the length to which its value is truncated."""

    name: str
    argument: str | None = None
    length: str | None = None

    def is_one_of(self, names: Collection[str]) -> bool:
        """Whether it is one of these, without argument and length."""
        return self.name in names and self.argument is None and self.length is None

    def __str__(self) -> str:
        argument = "" if self.argument is None else f"({self.argument})"
        length = "" if self.length is None else f":{self.length}"
        return f"%{self.name}{argument}{length}%"


PERCENT: Final = "%%"  # an escaped percent sign


def parts(text: str) -> Iterator[Command | str]:
    """A format string as Envoy parses it: commands, and the texts between them.

    At a "%" that starts no command Envoy stops; the rest is then the last part.
    """
    begin = 0
    while (at := text.find("%", begin)) >= 0:
        if at > begin:
            yield text[begin:at]
        command = _COMMAND.match(text, at)
        if command is None:
            yield text[at:]
            return
        yield PERCENT if command[1] is None else Command(command[1], command[2], command[3])
        begin = command.end()
    if begin < len(text):
        yield text[begin:]


def _problem(command: Command, placeholders: Collection[str] = ()) -> Iterator[str]:
    name, argument = command.name, command.argument or ""
    takes = _ARGUMENT.get(name)
    if name not in _ARGUMENT:
        near = difflib.get_close_matches(name, (*placeholders, *_ARGUMENT), 1, _SIMILARITY)
        hint = f'; did you mean "%{near[0]}%"?' if near else ""
        yield f'has "%{name}%", which Envoy does not know{hint}'
    elif takes is True and not argument:
        yield f'has "%{name}%", which needs something in parentheses'
    elif takes is False and argument:
        yield f'has "{command}", which takes nothing in parentheses'
    elif command.length is not None and name not in _TRUNCATABLE:
        yield f'has "{command}", which cannot be cut to a length'
    elif int(command.length or 0) > _LENGTH_MAX:
        yield f'has "{command}", whose length is too large'
    elif argument and name in _CHECKS and (wrong := _CHECKS[name](argument)):
        yield f'has "{command}": {wrong}'


def _header(argument: str) -> str:
    names = argument.split("?")
    if len(names) > 2:  # noqa: PLR2004 - a header, and another one in its place
        return "one header may stand in for another, not more; write two with one '?' between them"
    wrong = next((name for name in names if not _HEADER.fullmatch(name)), None)
    return "" if wrong is None else f'"{wrong}" cannot be the name of a header'


def _one_of(words: Collection[str], argument: str) -> str:
    return "" if argument in words else f'"{argument}" must be one of {", ".join(words)}'


def _metadata(argument: str) -> str:
    return _one_of(_METADATA, argument.partition(":")[0])


def _filter_state(argument: str) -> str:
    key, _, rest = argument.partition(":")
    how, colon, field = rest.partition(":")
    if not key:
        return "the key is missing before the first ':'"
    if how not in ("", "PLAIN", "TYPED", "FIELD"):
        return f'"{how}" must be one of PLAIN, TYPED, FIELD'
    if how == "FIELD":
        return "" if field else "FIELD needs the name of a field, as in key:FIELD:name"
    return f"only FIELD has something after it, and {how or 'this'} is none" if colon else ""


def _options(*choices: Sequence[str]) -> Callable[[str], str]:
    """Options separated by ':', each one of its own choices or empty; further ones are ignored."""

    def check(argument: str) -> str:
        options = zip(argument.split(":"), choices, strict=False)
        return next((_one_of(choice, word) for word, choice in options if word and word not in choice), "")

    return check


def _duration(argument: str) -> str:
    points = argument.split(":")
    if len(points) not in (2, 3):
        return "write two points in time and a unit, such as DS_RX_BEG:DS_RX_END:ms"
    return _one_of(("ns", "us", "ms"), points[2]) if len(points) == 3 else ""  # noqa: PLR2004


def _coalesced(argument: str) -> str:
    """What is wrong with the argument of COALESCE, a list of commands of which the first with a value counts.

    Envoy crashes on JSON that is no object, so this check is more than a better message.
    """
    try:
        parsed = json.loads(argument, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return "it is no JSON"
    commands = parsed.get("operators") if isinstance(parsed, dict) else None
    if not isinstance(commands, list) or not commands:
        return 'write an object with a list of commands, such as {"operators": ["PROTOCOL"]}'
    return next(filter(None, map(_coalesced_one, commands)), "")


def _no_number(word: str) -> None:
    raise ValueError(word)


def _coalesced_one(entry: object) -> str:
    fields = {"command": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, dict):
        return "an operator must be the name of a command, or an object"
    name, argument, length = (fields.get(field) for field in ("command", "param", "max_length"))
    if not isinstance(name, str) or not isinstance(argument, str | None):
        return 'an operator must have a text "command", and may have a text "param"'
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length <= 0):
        return '"max_length" must be a positive number'
    return next(_problem(Command(name, argument, None if length is None else str(length))), "")


_METADATA: Final = (
    *("DYNAMIC", "CLUSTER", "ROUTE", "UPSTREAM_HOST", "LISTENER", "VIRTUAL_HOST", "LISTENER_FILTER_CHAIN"),
)
_HEADER_COMMANDS: Final = (
    *("REQ", "REQUEST_HEADER", "RESP", "RESPONSE_HEADER", "RESPONSE_TRAILER", "STREAM_INFO_REQ", "TRAILER"),
)
_CERTIFICATE_FIELDS: Final = ("By", "Hash", "Cert", "Chain", "Subject", "URI", "DNS")

# What is wrong with an argument; empty where nothing is.
_CHECKS: Final[Mapping[str, Callable[[str], str]]] = {
    **dict.fromkeys(_HEADER_COMMANDS, _header),
    "CEL": cel.problem,
    "COALESCE": _coalesced,
    "COMMON_DURATION": _duration,
    "FILTER_STATE": _filter_state,
    "GRPC_STATUS": lambda argument: _one_of(("CAMEL_STRING", "SNAKE_STRING", "NUMBER"), argument),
    "METADATA": _metadata,
    "PATH": _options(("WQ", "NQ"), ("ORIG", "PATH", "ORIG_OR_PATH")),
    "QUERY_PARAMS": lambda argument: _one_of(("ORIG", "DECODED"), argument),
    "REQUESTED_SERVER_NAME": _options(
        ("SNI_ONLY", "SNI_FIRST", "HOST_FIRST"), ("ORIG_OR_HOST", "HOST", "ORIG")
    ),
    "UPSTREAM_FILTER_STATE": _filter_state,
    "XFCC_VALUE": lambda argument: (
        ""
        if argument.lower() in map(str.lower, _CERTIFICATE_FIELDS)
        else _one_of(_CERTIFICATE_FIELDS, argument)
    ),
}


def escaped(text: str) -> str:
    """A text escaped for format strings."""
    return text.replace("%", "%%")
