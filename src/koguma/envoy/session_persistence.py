"""Session persistence: a client stays with the endpoint that answered it first, by Envoy's stateful_session.

The session is the endpoint's address, in a cookie or header of the first answer which the client sends again.
An endpoint that is gone or fails is replaced. Where requests are split, it holds inside the backend that the
weights choose.
"""

from collections.abc import Iterator
from typing import Final

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

_FILTER: Final = "envoy.extensions.filters.http.stateful_session.v3"
_STATES: Final = "envoy.extensions.http.stateful_session"
CONFIG: Final = proto_json.typed(f"{_FILTER}.StatefulSession")  # does nothing by itself
_NAME: Final = "koguma-session"


def policy(session: Json) -> Data:
    """The configuration of a route for Envoy's stateful_session filter."""
    name = session.get("sessionName") or _NAME
    if session.get("type") == "Header":
        state = proto_json.extension(
            "envoy.http.stateful_session.header", f"{_STATES}.header.v3.HeaderBasedSessionState", name=name
        )
    else:
        cookie: Data = {"name": name, "path": "/"}
        if _is_permanent(session):
            cookie["ttl"] = proto_json.seconds(session["absoluteTimeout"])
        state = proto_json.extension(
            "envoy.http.stateful_session.cookie",
            f"{_STATES}.cookie.v3.CookieBasedSessionState",
            cookie=cookie,
        )
    return proto_json.typed(f"{_FILTER}.StatefulSessionPerRoute", stateful_session={"session_state": state})


def _is_permanent(session: Json) -> bool:
    lifetime = (session.get("cookieConfig") or {}).get("lifetimeType")
    return lifetime == "Permanent" and session.get("absoluteTimeout") is not None


def problems(session: Json) -> Iterator[tuple[str, str]]:
    """What of a configuration cannot be done: the field, which does not act, and why."""
    if session.get("absoluteTimeout") is not None and not _is_permanent(session):
        text = (
            "Envoy ends sessions in cookies of lifetimeType Permanent only; a header or session cookie stays"
        )
        yield "absoluteTimeout", text
    if session.get("idleTimeout") is not None:
        yield "idleTimeout", "Envoy does not know when a session was last used; use absoluteTimeout"
