"""Callers: who is at the other end of a connection, as conditions that Envoy can look at.

Envoy shows the URIs of a caller's certificate as one text with commas between them, in the certificate's
order. A URI may contain a comma itself, so whoever can get a certificate from some other domain could write
somebody else's name into it. A condition that lets callers in therefore also says how the first URI begins:
that one says which domain's CA has vouched for the rest.
"""

import re
from typing import Final

import msgspec

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data

URIS: Final = "%DOWNSTREAM_PEER_URI_SAN%"  # the same text, where Envoy formats one
SERVER_NAME: Final = "%REQUESTED_SERVER_NAME%"

_URI_INPUT: Final = proto_json.extension(
    "envoy.matching.inputs.uri_san", "envoy.extensions.matching.common_inputs.ssl.v3.UriSanInput"
)
_SERVER_NAME_INPUT: Final = proto_json.extension(
    "envoy.matching.inputs.server_name",
    "envoy.extensions.matching.common_inputs.network.v3.ServerNameInput",
)


class Uri(msgspec.Struct, frozen=True):
    """A URI in a caller's certificate, whole or by its beginning."""

    text: str
    is_prefix: bool = False
    domain: str = ""  # how the certificate's first URI begins; empty for any

    @property
    def pattern(self) -> str:
        """A regular expression for the whole text of URIs."""
        before = f"{re.escape(self.domain)}.*,"
        if self.text.startswith(self.domain):
            before = f"(?:{before})?"  # it may be the first one itself
        return before + re.escape(self.text) + ("[^,]*" if self.is_prefix else "") + "(?:,.*)?"


class Caller(msgspec.Struct, frozen=True):
    """Callers for whom all of this holds; nothing is everybody."""

    uris: tuple[Uri, ...] = ()
    server_name: str = ""  # known only behind a TLS inspector

    @property
    def is_anybody(self) -> bool:
        """Whether it does not look at the caller."""
        return not (self.uris or self.server_name)


def predicate(callers: tuple[Caller, ...]) -> Data:
    """A condition of a matcher: any one of the callers, none of which is everybody."""
    return _joined("or_matcher", [_all_of(caller) for caller in callers])


def _all_of(caller: Caller) -> Data:
    found = [_single(_URI_INPUT, {"safe_regex": _regex(uri.pattern)}) for uri in caller.uris]
    if caller.server_name:
        found.append(_single(_SERVER_NAME_INPUT, {"exact": caller.server_name}))
    return _joined("and_matcher", found)


def _single(input_: Data, match: Data) -> Data:
    return {"single_predicate": {"input": input_, "value_match": match}}


def _regex(pattern: str) -> Data:
    return {"google_re2": {}, "regex": pattern}  # matchers insist on the engine, though there is but one


def _joined(how: str, predicates: list[Data]) -> Data:
    return predicates[0] if len(predicates) == 1 else {how: {"predicate": predicates}}
