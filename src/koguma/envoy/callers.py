"""Callers: conditions about the client of a connection, for Envoy's matchers.

Envoy gives the URI SANs of a client's certificate as one text, separated by commas, in the certificate's
order. A URI may contain a comma itself, so a certificate of another trust domain could contain somebody
else's identity. A condition that admits callers therefore also fixes the prefix of the first URI: it names
the trust domain whose CA issued the certificate.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data

URIS: Final = "%DOWNSTREAM_PEER_URI_SAN%"  # the same text in format strings
SERVER_NAME: Final = "%REQUESTED_SERVER_NAME%"

_URI_INPUT: Final = proto_json.extension(
    "envoy.matching.inputs.uri_san", "envoy.extensions.matching.common_inputs.ssl.v3.UriSanInput"
)
_SERVER_NAME_INPUT: Final = proto_json.extension(
    "envoy.matching.inputs.server_name",
    "envoy.extensions.matching.common_inputs.network.v3.ServerNameInput",
)


class UriSan(msgspec.Struct, frozen=True):
    """A URI SAN in a caller's certificate: exact, or a prefix."""

    text: str
    is_prefix: bool = False
    domain: str = ""  # prefix of the certificate's first URI; empty for any

    @property
    def pattern(self) -> str:
        """A regular expression for the text of all URIs."""
        before = f"{re.escape(self.domain)}.*,"
        if self.text.startswith(self.domain):
            before = f"(?:{before})?"  # it may be the first URI itself
        return before + re.escape(self.text) + ("[^,]*" if self.is_prefix else "") + "(?:,.*)?"


class Caller(msgspec.Struct, frozen=True):
    """Callers for which all conditions hold; without conditions, everybody."""

    uris: tuple[UriSan, ...] = ()
    server_name: str = ""  # SNI, known only with a TLS inspector

    @property
    def is_anybody(self) -> bool:
        """Whether it has no conditions."""
        return not (self.uris or self.server_name)

    def is_one(self, uris: Sequence[str], server_name: str) -> bool:
        """Whether somebody with these URIs in his certificate, who asks for this server, is among them."""
        whole = ",".join(uris)
        has_uris = all(re.fullmatch(uri.pattern, whole) for uri in self.uris)
        return has_uris and self.server_name in ("", server_name)


def predicate(callers: tuple[Caller, ...]) -> Data:
    """A matcher predicate: any of the callers, each of which must have conditions."""
    return _joined("or_matcher", [_all_of(caller) for caller in callers])


def _all_of(caller: Caller) -> Data:
    predicates = [_single(_URI_INPUT, {"safe_regex": _regex(uri.pattern)}) for uri in caller.uris]
    if caller.server_name:
        predicates.append(_single(_SERVER_NAME_INPUT, {"exact": caller.server_name}))
    return _joined("and_matcher", predicates)


def _single(input_: Data, match: Data) -> Data:
    return {"single_predicate": {"input": input_, "value_match": match}}


def _regex(pattern: str) -> Data:
    return {
        "google_re2": {},
        "regex": pattern,
    }  # matchers require the engine to be named, though there is only one


def _joined(operator: str, predicates: list[Data]) -> Data:
    return predicates[0] if len(predicates) == 1 else {operator: {"predicate": predicates}}
