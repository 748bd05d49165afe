"""RBAC: who may call, as the configuration of Envoy's RBAC filters, and how a denied caller learns why.

Decisions stand in a list and the first that fits a caller holds; a caller that none fits is denied. Every
decision has the name of who made it. Envoy writes that name into the response code details of a denied
request, and into the termination details of a denied connection:
`rbac_access_denied_matched_policy[<name>]`. Its other form of rules would name no one for those that
nothing allows. A planned denial lets the caller in and is counted as `shadow_denied`.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from koguma.envoy import callers, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data

Action = Literal["Allow", "Deny", "AllowWithShadowDeny"]

DENIED_BY: Final = "x-koguma-denied-by"
# The name for what nothing decides; no mesh and no policy can be called so. Without a space, since Envoy
# replaces those in response code details.
DEFAULT: Final = "no-permission(deny-by-default)"
_UNDECIDED: Final = "default"  # among planned denials, where nothing decides and so nobody is noted

_HTTP: Final = "envoy.extensions.filters.http.rbac.v3.RBAC"
_NETWORK: Final = "envoy.extensions.filters.network.rbac.v3.RBAC"
_ALLOW: Final = "ALLOW"
_DENY: Final = "DENY"


class Decision(msgspec.Struct, frozen=True):
    """What happens to some callers, and who says so."""

    action: Action
    by: str
    callers: tuple[Caller, ...]

    @property
    def is_for_anybody(self) -> bool:
        """Whether it does not look at the caller."""
        return any(caller.is_anybody for caller in self.callers)


def http(decisions: Iterable[Decision]) -> Data:
    """The HTTP filter's configuration: a denied request is answered with 403."""
    return proto_json.typed(_HTTP, **_matchers(tuple(decisions)))


def network(name: str, decisions: Iterable[Decision]) -> Data:
    """The network filter's configuration: a denied connection is closed."""
    return proto_json.typed(_NETWORK, stat_prefix=name, **_matchers(tuple(decisions)))


def deny_all() -> Data:
    """The HTTP filter where nobody is let in."""
    return http(())


def deny_all_network(name: str) -> Data:
    """The network filter where nobody is let in."""
    return network(name, ())


def _matchers(decisions: tuple[Decision, ...]) -> Data:
    enforced = [(each, _DENY if each.action == "Deny" else _ALLOW) for each in decisions]
    made: Data = {"matcher": _matcher(enforced, _DENY)}
    planned = [index for index, each in enumerate(decisions) if each.action == "AllowWithShadowDeny"]
    if planned:
        # What comes after the last planned denial is as good as nothing here.
        relevant = decisions[: planned[-1] + 1]
        shadow = [(each, _DENY if each.action == "AllowWithShadowDeny" else _ALLOW) for each in relevant]
        made["shadow_matcher"] = _matcher(shadow, _ALLOW)
    return made


def _matcher(decided: Iterable[tuple[Decision, str]], otherwise: str) -> Data:
    """The first that fits, else `otherwise`; what comes after one for everybody can never fit."""
    fallback = _action(DEFAULT if otherwise == _DENY else _UNDECIDED, otherwise)
    found = []
    for decision, action in decided:
        if decision.is_for_anybody:
            fallback = _action(decision.by, action)
            break
        if decision.callers:
            on_match = _action(decision.by, action)
            found.append({"predicate": callers.predicate(decision.callers), "on_match": on_match})
    if not found:
        return {"on_no_match": fallback}
    return {"matcher_list": {"matchers": found}, "on_no_match": fallback}


def _action(name: str, action: str) -> Data:
    typed = proto_json.extension(
        "envoy.filters.rbac.action", "envoy.config.rbac.v3.Action", name=name or DEFAULT, action=action
    )
    return {"action": typed}


_DETAILS: Final = "rbac_access_denied"


def _denier(details: str) -> str:
    """Envoy's format of the name inside the details' brackets."""
    return f"%CEL(re.extract({details}, 'policy.(.+).$', '\\\\1'))%"


def _denied(details: str) -> Data:
    """An access log filter for what this filter denied; others answer 403 too."""
    cel = proto_json.extension(
        "envoy.access_loggers.extension_filters.cel",
        "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
        expression=f"{details}.startsWith('{_DETAILS}')",
    )
    return {"extension_filter": cel}


def denied_reply() -> Data:
    """The local_reply_config by which a denied request's answer says which policy denied it, if one did."""
    header = {"key": DENIED_BY, "value": _denier("response.code_details")}
    change = {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {"mappers": [{"filter": _denied("response.code_details"), "headers_to_add": [change]}]}


def denied_log() -> Data:
    """An access log of an HttpConnectionManager with a line for each denied request."""
    what = f"%REQ(:METHOD)% %PATH(NQ:ORIG_OR_PATH)% from {callers.URIS}"
    return _log("response.code_details", what)


def denied_connection_log() -> Data:
    """An access log of a TcpProxy with a line for each denied connection."""
    return _log("connection.termination_details", f"a connection from {callers.URIS}")


def _log(details: str, what: str) -> Data:
    line = f"[%START_TIME%] {_denier(details)} denied {what} (%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%)\n"
    written = proto_json.extension(
        "envoy.access_loggers.stdout",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"text_format_source": {"inline_string": line}},
    )
    return {**written, "filter": _denied(details)}
