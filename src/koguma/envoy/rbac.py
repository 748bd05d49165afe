"""RBAC: the configuration of Envoy's RBAC filters, and how a denied caller learns which policy denied it.

The first decision that matches a caller applies; without one the caller is denied. Every decision has the
name of its policy. Envoy writes that name into the response code details of a denied request, and into the
termination details of a denied connection: `rbac_access_denied_matched_policy[<name>]`. The matcher form is
used because `rules` give no name to callers that nothing allows. A shadow denial admits the caller and is
counted as `shadow_denied`.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from koguma.envoy import callers, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data

Action = Literal["Allow", "Deny", "AllowWithShadowDeny"]

DENIED_BY: Final = "x-koguma-denied-by"
# The name of the default decision, which no mesh and no policy can have. Without spaces, which Envoy replaces
# in response code details.
DEFAULT: Final = "no-permission(deny-by-default)"
_UNDECIDED: Final = "default"  # of the shadow rules, where nothing matches

_HTTP: Final = "envoy.extensions.filters.http.rbac.v3.RBAC"
_NETWORK: Final = "envoy.extensions.filters.network.rbac.v3.RBAC"
_ALLOW: Final = "ALLOW"
_DENY: Final = "DENY"


class Decision(msgspec.Struct, frozen=True):
    """What happens to some callers, and by which policy."""

    action: Action
    by: str
    callers: tuple[Caller, ...]

    @property
    def is_for_anybody(self) -> bool:
        """Whether it applies to all callers."""
        return any(caller.is_anybody for caller in self.callers)


def http(decisions: Iterable[Decision]) -> Data:
    """The HTTP filter's configuration: a denied request is answered with 403."""
    return proto_json.typed(_HTTP, **_matchers(tuple(decisions)))


def network(name: str, decisions: Iterable[Decision]) -> Data:
    """The network filter's configuration: a denied connection is closed."""
    return proto_json.typed(_NETWORK, stat_prefix=name, **_matchers(tuple(decisions)))


def deny_all() -> Data:
    """The HTTP filter that denies all callers."""
    return http(())


def deny_all_network(name: str) -> Data:
    """The network filter that denies all callers."""
    return network(name, ())


def _matchers(decisions: tuple[Decision, ...]) -> Data:
    enforced = [(each, _DENY if each.action == "Deny" else _ALLOW) for each in decisions]
    config: Data = {"matcher": _matcher(enforced, _DENY)}
    shadow_denials = [index for index, each in enumerate(decisions) if each.action == "AllowWithShadowDeny"]
    if shadow_denials:
        # Decisions after the last shadow denial do not matter here.
        relevant = decisions[: shadow_denials[-1] + 1]
        shadow = [(each, _DENY if each.action == "AllowWithShadowDeny" else _ALLOW) for each in relevant]
        config["shadow_matcher"] = _matcher(shadow, _ALLOW)
    return config


def _matcher(decided: Iterable[tuple[Decision, str]], otherwise: str) -> Data:
    """The first decision that matches, else `otherwise`; none after one for all callers can match."""
    fallback = _action(DEFAULT if otherwise == _DENY else _UNDECIDED, otherwise)
    matchers = []
    for decision, action in decided:
        if decision.is_for_anybody:
            fallback = _action(decision.by, action)
            break
        if decision.callers:
            on_match = _action(decision.by, action)
            matchers.append({"predicate": callers.predicate(decision.callers), "on_match": on_match})
    if not matchers:
        return {"on_no_match": fallback}
    return {"matcher_list": {"matchers": matchers}, "on_no_match": fallback}


def _action(name: str, action: str) -> Data:
    typed = proto_json.extension(
        "envoy.filters.rbac.action", "envoy.config.rbac.v3.Action", name=name or DEFAULT, action=action
    )
    return {"action": typed}


_DETAILS: Final = "rbac_access_denied"


def _denier(details: str) -> str:
    """A format string for the name in the brackets of the details."""
    return f"%CEL(re.extract({details}, 'policy.(.+).$', '\\\\1'))%"


def _denied(details: str) -> Data:
    """An access log filter for denials by RBAC; other filters answer 403 too."""
    cel = proto_json.extension(
        "envoy.access_loggers.extension_filters.cel",
        "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
        expression=f"{details}.startsWith('{_DETAILS}')",
    )
    return {"extension_filter": cel}


def denied_reply() -> Data:
    """The local_reply_config that adds the denying policy to the response of a denied request."""
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
    log = proto_json.extension(
        "envoy.access_loggers.stdout",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"text_format_source": {"inline_string": line}},
    )
    return {**log, "filter": _denied(details)}
