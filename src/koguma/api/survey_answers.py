"""Survey answers: what paths have in common that ask many Envoys: who can be asked, limits, and who was."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from koguma.api.call import Call
from koguma.fleet.envoy_views import EnvoyViews
from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.shared_states import SharedStates
from koguma.identity.proxy_types import EGRESS, SIDECAR
from koguma.model.errors import BadRequest, Unavailable
from koguma.model.resource import Key
from koguma.model.schema import Json

SECONDS_MIN: Final = 0.1
SECONDS_MAX: Final = 30.0
AT_ONCE_MAX: Final = 16  # surveys of one control plane, whoever asks for them
_SHOWN_MAX: Final = 20  # proxies that did not answer, each with its reason


class Surveys:
    """The Envoys that can be asked, and turns for those who ask them."""

    def __init__(
        self, views: Callable[[], EnvoyViews | None], states: Callable[[], SharedStates | None]
    ) -> None:
        self._views = views
        self._states = states
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)

    def views(self) -> EnvoyViews:
        """Whom to ask; Unavailable where this control plane serves no proxies."""
        views = self._views()
        if views is None:
            raise Unavailable("this control plane serves no proxies; see `koguma check`")
        return views

    def connected(self, mesh: str) -> Iterator[ProxyState]:
        """The proxies of a mesh that are connected, wherever, in key order; not those of zones."""
        states = self._states()
        if states is not None:
            yield from (state for state in states.connected(mesh) if state.key.kind == SIDECAR.kind)

    def egresses(self) -> Iterator[ProxyState]:
        """The zone egresses that are connected, in key order."""
        states = self._states()
        if states is not None:
            yield from (state for state in states.connected() if state.key.kind == EGRESS.kind)

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy; None where no control plane has seen it."""
        states = self._states()
        return states.of(key) if states is not None else None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A turn to ask; Unavailable where too many do already."""
        if self._turns.locked():
            raise Unavailable(f"{AT_ONCE_MAX} requests are asking Envoys already; try again")
        async with self._turns:
            yield


def seconds(call: Call, default: float) -> float:
    """The query parameter `seconds`: how far the two looks are apart."""
    text = call.query.get("seconds")
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SECONDS_MIN <= value <= SECONDS_MAX:
        allowed = f"a number from {SECONDS_MIN:g} to {SECONDS_MAX:g}"
        raise BadRequest(f'query parameter "seconds" must be {allowed}, not "{text[:100]}"')
    return value


def count(call: Call, name: str, default: int, maximum: int) -> int:
    """A query parameter that says how many proxies to ask at most."""
    text = call.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):  # noqa: PLR2004 - digits
        raise BadRequest(
            f'query parameter "{name}" must be a whole number from 1 to {maximum}, not "{text[:100]}"'
        )
    return int(text)


def asked_json(
    n_known: int, n_asked: int, unanswered: Mapping[Key, str], names: Mapping[Key, str]
) -> dict[str, Json]:
    """Who was asked: how many of how many, and who did not answer."""
    shown = sorted((names.get(key, key.name), reason) for key, reason in unanswered.items())[:_SHOWN_MAX]
    return {
        "of": n_known,
        "asked": n_asked,
        "answered": n_asked - len(unanswered),
        "isSample": n_asked < n_known,
        "unanswered": [{"name": name, "reason": reason} for name, reason in shown],
    }
