"""Peers: asks the other control planes of the store for pages of proxies that have their channel there.

The one that a proxy's stream is connected to is asked first; its agent may have opened its channel at
another. Who is asked looks at its own channels alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import msgspec

from koguma.fleet.envoy_views import NoChannel, NotConnected
from koguma.fleet.proxy_state import InstanceState
from koguma.fleet.shared_states import SharedStates
from koguma.model.errors import BadGateway, KogumaError, NotSupported, Unavailable
from koguma.model.redacted import Redacted
from koguma.model.resource import Key
from koguma.model.violation import cut
from koguma.runtime.outgoing_calls import CallFailed
from koguma.runtime.peer_calls import PeerCalls, PeerResponse

PATH: Final = "/peer/page"
_DETAIL_MAX: Final = 1000
_FOUND_MAX: Final = 50_000
_MORE_SECONDS: Final = 2.0  # than a proxy has to answer
_ERRORS: Final[dict[str, Callable[[str], KogumaError]]] = {
    each.__name__: each for each in (NotConnected, NoChannel, NotSupported, BadGateway, Unavailable)
}


class PeerRequest(msgspec.Struct, frozen=True):
    """A page that a control plane asks another for."""

    key: Key
    path: str
    bytes_max: int
    seconds_max: float


class PeerError(msgspec.Struct, frozen=True):
    """Why the other control plane has no page: the sort of error, and words."""

    error: str
    detail: str


class Peers:
    """The other control planes; `token` makes the token with which one of them is asked."""

    def __init__(self, states: SharedStates, calls: PeerCalls, token: Callable[[str], Redacted]) -> None:
        self._states = states
        self._calls = calls
        self._token = token
        self._found: OrderedDict[Key, str] = OrderedDict()  # where the channel of a proxy was last

    async def ask(self, key: Key, path: str, bytes_max: int, seconds_max: float) -> bytes:
        """A page of a proxy that has its channel at one of them; NotConnected where it is at none."""
        best: KogumaError = NotConnected("it is not connected")
        request = PeerRequest(key, path, bytes_max, seconds_max)
        for other in self._in_order(key):
            try:
                page = await self._asked(other, request)
            except (NotConnected, NoChannel) as error:
                best = error if isinstance(best, NotConnected) else best
            except _Unreachable as error:
                best = error if isinstance(best, NotConnected) and self._has(other, key) else best
            else:
                self._remember(key, other.id)
                return page
        raise best

    def turn(self, key: Key, bytes_max: int, seconds_max: float) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - as zones need them
        """Nobody has to wait for another control plane: each has turns of its own."""
        return nullcontext()

    def _in_order(self, key: Key) -> Iterator[InstanceState]:
        """Those that live, the likeliest first."""
        state = self._states.of(key)
        likely = (self._found.get(key), state.instance if state is not None else None)
        others = [each for each in self._states.instances() if each.address and not each.is_here]
        living = [each for each in others if not each.is_gone]
        rank = {id_: number for number, id_ in reversed([*enumerate(likely)])}
        yield from sorted(living, key=lambda other: (rank.get(other.id, len(likely)), other.id))

    def _has(self, other: InstanceState, key: Key) -> bool:
        state = self._states.of(key)
        return state is not None and state.is_connected and state.instance == other.id

    def _remember(self, key: Key, instance: str) -> None:
        self._found[key] = instance
        self._found.move_to_end(key)
        if len(self._found) > _FOUND_MAX:
            self._found.popitem(last=False)

    async def _asked(self, other: InstanceState, request: PeerRequest) -> bytes:
        authorization = f"Bearer {self._token(other.id).reveal()}"
        body, seconds = msgspec.json.encode(request), request.seconds_max + _MORE_SECONDS
        try:
            response = await self._calls.post(
                other.address + PATH, body, authorization, request.bytes_max, seconds
            )
        except CallFailed as failed:
            raise _Unreachable(_unreachable(other, failed.detail)) from failed
        if response.status == 200:  # noqa: PLR2004 - OK
            return response.body
        raise _error(other, response)


class _Unreachable(Unavailable):
    """A control plane does not answer."""


def _unreachable(other: InstanceState, reason: str) -> str:
    at = f"which does not answer at {other.address}: {reason}"
    return f'it is connected to the control plane "{other.id}", {at}'


def _error(other: InstanceState, response: PeerResponse) -> KogumaError:
    try:
        error = msgspec.json.decode(response.body, type=PeerError)
    except msgspec.MsgspecError:
        words = response.body[:_DETAIL_MAX].decode("utf-8", "replace")
        return _Unreachable(_unreachable(other, f"it answers {response.status}: {words}"))
    made = _ERRORS.get(error.error, Unavailable)
    return made(cut(error.detail, _DETAIL_MAX))
