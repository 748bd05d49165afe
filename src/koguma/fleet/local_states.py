"""Local states: the states of the proxies that are connected to this control plane, and of those that were.

A state is made when somebody asks. Which proxies have changed since their rows were last written is
remembered, so that writing rows costs nothing where nothing happens.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime

import msgspec

from koguma.application.context import Context
from koguma.fleet.certificates import Certificates
from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.fleet.proxy_progress import ProxyProgress, missing_spans, progress_of, refused_spans
from koguma.fleet.proxy_state import ProxyState, SyncState, TokenState, responses_of
from koguma.fleet.quarantine import HeldResource, Quarantine
from koguma.fleet.roster import Roster
from koguma.model.resource import Key
from koguma.xds.contract import ProxyStatus


class LocalStates:
    """The proxies of `roster`, with what was rejected and which certificates they have."""

    def __init__(
        self,
        context: Context,
        roster: Roster,
        quarantine: Quarantine,
        certificates: Certificates,
        clock: Callable[[], datetime],
    ) -> None:
        self._context = context
        self._roster = roster
        self._quarantine = quarantine
        self._certificates = certificates
        self._clock = clock
        self._disconnected: dict[Key, ProxyState] = {}
        self._changed: dict[Key, None] = {}
        self.on_change: Callable[[Key], None] = lambda _key: None

    def __iter__(self) -> Iterator[Key]:
        yield from self._roster
        yield from self._disconnected

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy that is connected here, or was when it was last seen here."""
        connection = self._roster.get(key)
        return self._state(connection) if connection is not None else self._disconnected.get(key)

    def progress(self) -> Iterator[ProxyProgress]:
        """How far each of them is, without the cost of making its state."""
        for key, connection in self._roster.items():
            missing, failures = missing_spans(connection.missing_parts), connection.offered.failures
            yield ProxyProgress(
                key,
                connection.connected_at,
                has=connection.revision,
                offered=connection.offered_revision,
                is_stuck=connection.build_failure is not None,
                lacks_parts=bool(failures) and not missing.keys() >= {*failures},
                refused=(*refused_spans(self._quarantine.of(key).values()), *missing.values()),
            )
        yield from map(progress_of, self._disconnected.values())

    def note(self, key: Key) -> None:
        """Something about a proxy has changed. Cheap."""
        self._changed[key] = None
        self.on_change(key)

    def note_connected(self, key: Key) -> None:
        """A proxy has connected."""
        self._disconnected.pop(key, None)
        self.note(key)

    def note_disconnected(self, connection: ConnectedProxy) -> None:
        """The last stream of a proxy has ended; to be called while all about it is still known."""
        self._disconnected[connection.key] = msgspec.structs.replace(
            self._state(connection), disconnected_at=self._clock(), revision=connection.revision
        )
        self.note(connection.key)

    def take_changed(self) -> list[Key]:
        """The proxies that have changed since this was last asked."""
        changed, self._changed = list(self._changed), {}
        return changed

    def forget_gone(self, changed: Collection[Key]) -> list[Key]:
        """Forget disconnected proxies whose objects are gone, except those that have yet to be written."""
        waiting = set(changed)
        gone = [key for key in self._disconnected if key not in waiting and not self._is_stored(key)]
        for key in gone:
            del self._disconnected[key]
        return gone

    def _is_stored(self, key: Key) -> bool:
        return self._context.state.get(key) is not None

    def _state(self, connection: ConnectedProxy) -> ProxyState:
        key, status, claims = connection.key, connection.status, connection.admission.claims
        held = tuple(self._quarantine.of(key).values())
        is_behind = connection.behind_since is not None
        kept = connection.kept
        return ProxyState(
            key=key,
            core_name=connection.proxy.core_name,
            identifier=str(connection.proxy.kri(self._context.kinds[key.kind].short) or ""),
            instance=self._context.about.instance_id,
            subscription=connection.subscription,
            connected_at=connection.connected_at,
            state=_shown(status, is_behind=is_behind, has_held=bool(held)),
            revision=connection.revision if is_behind else 0,
            offered=connection.offered_revision,
            behind_since=connection.behind_since,
            rejections=status.rejections,
            held=tuple(map(_without_bytes, held)),
            failures=connection.failures,
            missing_parts=connection.missing_parts,
            kept=tuple(sorted(kept)),
            versions=connection.versions,
            responses=responses_of(status.responses),
            responses_at=connection.responses_at,
            certificates=self._certificates.states(key),
            token=TokenState(claims.iat, claims.exp),
            is_registered=connection.registered,
            node=connection.node,
        )


def _without_bytes(held: HeldResource) -> HeldResource:
    return msgspec.structs.replace(held, good="", needs=())


def _shown(status: ProxyStatus, *, is_behind: bool, has_held: bool) -> SyncState:
    """The state that people see: while a resource is held back it is a NACK, whatever was offered since."""
    if has_held:
        return "nack"
    return "behind" if is_behind and status.state == "synced" else status.state
