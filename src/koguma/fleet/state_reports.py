"""State reports: what a zone tells Global of its proxies: at first all states, later those that change.

A report has as many states as Global takes at once. A proxy that changes again before it was reported is
reported once, as it is then.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from koguma.fleet.proxy_state import ProxyState, ProxyVersions
from koguma.fleet.shared_states import SharedStates
from koguma.model.proxy_report import STATE_BYTES_MAX, ProxyReport
from koguma.model.resource import Key
from koguma.model.violation import cut

_SHOWN_MAX: Final = 3  # rejections, and the like, of a state that is too large as a whole
_TEXT_MAX: Final = 500
_NOTHING: Final = -1


class StateReports:
    """The reports of one zone, whichever of its control planes has which proxy."""

    def __init__(self, states: SharedStates) -> None:
        self._states = states
        self._changed: dict[Key, None] = {}
        self._reported: set[Key] = set()
        self._revision = _NOTHING
        states.follow(self._note)

    def _note(self, keys: Iterable[Key]) -> None:
        self._changed |= dict.fromkeys(keys)

    def start(self) -> None:
        """A connection begins: everything is new to Global."""
        self._changed = dict.fromkeys(self._states.keys())
        self._reported, self._revision = set(), _NOTHING

    def next(self, states_max: int) -> ProxyReport | None:
        """What has changed since the last report; None where nothing has."""
        keys = list(islice(self._changed, states_max))
        states, removed = [], []
        for key in keys:
            del self._changed[key]
            if (state := self._states.shown(key)) is not None:
                states.append((key, encoded(state)))
                self._reported.add(key)
            elif key in self._reported:
                removed.append(key)
                self._reported.discard(key)
        before, self._revision = self._revision, self._states.revision
        if not (states or removed) and before == self._revision:
            return None
        return ProxyReport(self._revision, states, removed)


def encoded(state: ProxyState) -> bytes:
    """A state as JSON, without the details where it would be too large."""
    state = msgspec.structs.replace(state, node=None)  # Global configures no proxies
    data = msgspec.json.encode(state)
    if len(data) > STATE_BYTES_MAX:
        data = msgspec.json.encode(_shortened(state))
    if len(data) > STATE_BYTES_MAX:
        data = msgspec.json.encode(_bare(state))
    return data


def _shortened(state: ProxyState) -> ProxyState:
    replaced = msgspec.structs.replace
    return replaced(
        state,
        rejections=tuple(
            replaced(each, names=each.names[:_SHOWN_MAX], versions=(), text=cut(each.text, _TEXT_MAX))
            for each in state.rejections[:_SHOWN_MAX]
        ),
        held=tuple(replaced(each, text=cut(each.text, _TEXT_MAX)) for each in state.held[:_SHOWN_MAX]),
        failures=tuple(
            replaced(each, text=cut(each.text, _TEXT_MAX)) for each in state.failures[:_SHOWN_MAX]
        ),
        missing_parts=(),
        kept=(),
        certificates=state.certificates[:1],
    )


def _bare(state: ProxyState) -> ProxyState:
    return msgspec.structs.replace(
        state,
        rejections=(),
        held=(),
        failures=(),
        missing_parts=(),
        kept=(),
        certificates=(),
        versions=ProxyVersions(envoy=state.versions.envoy),
    )
