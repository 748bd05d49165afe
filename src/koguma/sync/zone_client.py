"""Zone client: the connection of a zone's control plane to Global, kept up for as long as it runs.

While Global is away the zone works on with what it has. Of several control planes of a zone Global lets one
in; the others ask again every few seconds, and what they would send is the same.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import grpc
import msgspec
import structlog

from koguma.application.context import Context
from koguma.kinds import KINDS
from koguma.model.errors import BadRequest, KogumaError
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource
from koguma.policies import POLICIES
from koguma.store.contract import Change, Put, Transaction
from koguma.sync import joining, last_global, mapping, stream_service, zone_credentials
from koguma.sync.connection import Duties, PeerState, SyncConnection
from koguma.sync.held_objects import HeldObjects
from koguma.sync.last_global import GlobalSeen
from koguma.sync.mapping import Travelling
from koguma.sync.protocol.catalog import Audience
from koguma.sync.protocol.messages import CONFIG_MAX, BrokenProtocol, Refusal, SyncedObject, SyncGreeting
from koguma.sync.protocol.subscriber import Delivery
from koguma.sync.published_objects import PublishedObjects
from koguma.sync.received_objects import ReceivedObjects

OBJECTS_MAX: Final = 1_000_000  # of Global that a zone stores
_RETRY_SECONDS: Final = (0.5, 10.0)
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_HAD_BEFORE_MAX: Final = 1000
_AUTHOR: Final = "global"  # of what comes from there
_ENDED: Final = "Global ended the connection"
_STEADY_SECONDS: Final = 30.0  # after which a connection counts as good, and the next try is soon

_BUILT_IN: Final = frozenset(kind.name for kind in (*KINDS, *POLICIES))

_log = structlog.get_logger("koguma.sync")


class GlobalAddress(msgspec.Struct, frozen=True):
    """Where Global is, and how a zone shows who it is. The files are read for each connection."""

    address: str  # grpcs://HOST:PORT
    ca_file: str
    token_file: str
    accepted: str = ""  # of what was seen: an operator agrees that it is forgotten


class ZoneClient:
    """Keeps a zone connected to Global."""

    def __init__(self, context: Context, target: GlobalAddress, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._target = target
        self._clock = clock
        self._zone = context.control_plane.zone
        self._published = PublishedObjects(context.store, self._outgoing)
        self._held = HeldObjects(
            context.store, lambda _key: mapping.GLOBAL, self._is_of_global, mapping.content_from_global
        )
        self._received = ReceivedObjects(
            context,
            _AUTHOR,
            self._objection,
            keeps_status=True,
            objects_max=OBJECTS_MAX,
            beside=self._noted,
            is_checked=self._is_checked,
        )
        self._connection: SyncConnection | None = None
        self.last_error: tuple[datetime, str] | None = None
        self.doubt = ""  # why what Global no longer has is kept; empty where it is not
        self._is_other = False
        self._had_before: dict[int, int] = {}  # by revision of Global's that it has
        self._source = ""
        self.duties = Duties()  # what Global may ask, and is told, beside objects
        self._is_same_version = False
        self.is_waiting = False  # because another control plane of the zone is connected
        self.is_refused = False  # by its token
        self.has_bad_files = False  # of the CA, or the token

    def _outgoing(self, resource: Resource) -> Travelling | None:
        kind = self._context.kinds.get(resource.kind)
        sent = (
            None
            if kind is None or mapping.is_awaited(resource)
            else mapping.upward(resource, kind, self._zone)
        )
        return None if sent is None else Travelling(sent)

    def _is_of_global(self, resource: Resource) -> bool:
        kind = self._context.kinds.get(resource.kind)
        return kind is not None and mapping.came_from_global(resource, kind, self._zone)

    @property
    def state(self) -> PeerState | None:
        """How Global is; None while it is not connected."""
        return self._connection.state if self._connection is not None else None

    async def preview(
        self, objects: Sequence[SyncedObject], removed: Sequence[Key]
    ) -> tuple[list[Change], list[Refusal]]:
        """What would change here, and be refused, if Global sent these objects now."""
        return await self._received.preview(Delivery(0, tuple(objects), tuple(removed)))

    def name_on_global(self, resource: Resource) -> str:
        """How Global calls an object that this control plane stores, as long as it travels there."""
        kind = self._context.kinds.get(resource.kind)
        sent = mapping.upward(resource, kind, self._zone) if kind is not None else None
        return (sent or resource).core_name

    async def publish(self) -> None:
        """Follow the store until cancelled."""
        await self._published.run()

    async def stay_connected(self) -> None:
        """Connect to Global, again and again, until cancelled."""
        pause = _RETRY_SECONDS[0]
        while True:
            began = asyncio.get_running_loop().time()
            reason = await self._connect()
            if self.last_error is not None and self.last_error[1] == reason:
                pass
            elif self.is_waiting:
                _log.info("Global waits for another control plane of this zone to go", reason=reason)
            else:
                _log.warning(
                    f"{self._obstacle}; the zone works on", address=self._target.address, reason=reason
                )
            self.last_error = self._clock(), reason
            if asyncio.get_running_loop().time() - began > _STEADY_SECONDS:
                pause = _RETRY_SECONDS[0]
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - zones that lost Global together
            pause = min(pause * 2, _RETRY_SECONDS[1])

    @property
    def _obstacle(self) -> str:
        if self.has_bad_files:
            return "this zone has nothing to connect to Global with"
        return "Global does not let this zone in" if self.is_refused else "Global is away"

    async def _connect(self) -> str:
        """Connect, and sync until that ends; returns why."""
        self.is_refused = self.has_bad_files = False
        try:
            credentials, metadata = self._credentials(), self._metadata()
        except (OSError, BadRequest) as error:
            self.has_bad_files = True
            if isinstance(error, BadRequest):
                return error.detail
            return f"{error.filename} cannot be read: {error.strerror}"
        async with grpc.aio.secure_channel(
            urlsplit(self._target.address).netloc, credentials, options=stream_service.OPTIONS
        ) as channel:
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
            method = channel.stream_stream(stream_service.PATH)
            call = method(metadata=metadata)
            try:
                await self._synced(call)
            except grpc.aio.AioRpcError as error:
                self.is_waiting = error.code() is grpc.StatusCode.ALREADY_EXISTS
                self.is_refused = error.code() in _REFUSED
                if error.code() is grpc.StatusCode.INTERNAL:  # of a write that came after the stream's end
                    return _ENDED
                return str(error.details())
            except (grpc.aio.UsageError, asyncio.InvalidStateError):  # a write to a stream that has ended
                return str(await call.details())
            except KogumaError as error:
                self.is_waiting = False
                return error.detail
            finally:
                self._connection = None
                call.cancel()
        return _ENDED

    async def _synced(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        connection = self._connection = SyncConnection(
            self._published,
            lambda: self._held.of(mapping.GLOBAL),
            self._received,
            self._audience,
            self._clock,
            self._all_duties,
        )
        await connection.run(_messages(call), call.write, self._greeting, self._checked, greets_first=True)

    @property
    def _all_duties(self) -> Duties:
        return msgspec.structs.replace(self.duties, match=self._matched)

    def _credentials(self) -> grpc.ChannelCredentials:
        file = self._target.ca_file
        ca = zone_credentials.ca(Path(file).read_bytes(), file) if file else None
        return grpc.ssl_channel_credentials(ca)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        file = self._target.token_file
        token = zone_credentials.token(Path(file).read_bytes(), file)
        return (
            (stream_service.ZONE_HEADER, self._zone),
            (stream_service.INSTANCE_HEADER, self._context.about.instance_id),
            (stream_service.AUTHORIZATION, f"Bearer {token}"),
        )

    def _audience(self, peer: SyncGreeting) -> Audience:
        kinds = frozenset(peer.kinds)
        return lambda reach: reach.kind in kinds

    def _greeting(self, sums: bytes) -> SyncGreeting:
        about = self._context.about
        seen = last_global.stored_in(self._context.state)
        return SyncGreeting(
            name=self._zone,
            version=about.version,
            instance=about.instance_id,
            source=about.cluster_id(),
            revision=self._context.state.revision,
            kinds=tuple(
                kind.name
                for kind in self._context.kinds
                if kind.sync.global_to_zones or kind.sync.across_zones
            ),
            sums=sums,
            config=self._config(),
            features=self._all_duties.features,
            seen=seen.revision if seen is not None else 0,
        )

    def _config(self) -> str:
        config = msgspec.json.encode(self._context.about.settings(), order="sorted").decode()
        return config if len(config) <= CONFIG_MAX else ""

    async def _checked(self, peer: SyncGreeting) -> bool:
        if peer.name:
            raise BrokenProtocol(f'"{peer.name}" answers, which is a zone and not Global')
        self.is_waiting = False
        self._had_before = {}
        if self.last_error is not None:
            _log.info("Global is there", address=self._target.address, version=peer.version)
            self.last_error = None
        self._source = peer.source
        self._is_same_version = peer.version == self._context.about.version
        seen = last_global.stored_in(self._context.state)
        if seen is not None and str(seen) != self._target.accepted:
            await self._compare(seen, peer)
            return bool(self.doubt)
        self._is_other, self.doubt = False, ""
        if seen is not None:
            await self._note(GlobalSeen(peer.source, peer.revision, peer.transaction))
        return False

    async def _compare(self, seen: GlobalSeen, peer: SyncGreeting) -> None:
        """Note at once that Global is in doubt: soon its revisions are those of before again."""
        self._is_other = seen.source != peer.source
        if self._is_other:  # which is seen each time
            self.doubt = f"this is another Global ({peer.source}) than before; nothing is taken from it"
        else:
            self.doubt = seen.doubt_about(peer.revision, peer.seen_transaction)
            if self.doubt != seen.doubt:
                await self._note(msgspec.structs.replace(seen, doubt=self.doubt))
        if self.doubt:
            _log.warning("what Global does not have any more is kept", reason=self.doubt, seen=str(seen))

    async def _matched(self, revision: int, transaction: str) -> None:
        """Nothing is here that Global does not have: whatever it has forgotten, it has it again."""
        if not self._is_other:
            await self._note(GlobalSeen(self._source, revision, transaction))
            if self.doubt:
                _log.info("Global has everything again that was kept", revision=revision)
            self.doubt = ""

    async def _note(self, seen: GlobalSeen) -> None:
        stored = self._context.state.entry(last_global.KEY)
        expect = stored.revision if stored is not None else 0  # another control plane may know better
        await self._context.store.write(Transaction((seen.put(expect),), _AUTHOR))

    async def had_before(self, revision: int) -> int:
        """A revision of this zone's store at which nothing of one of Global's had come; 0: not known.

        Global asks again and again while somebody waits, so it is kept while the connection lasts.
        """
        if revision not in self._had_before:
            if len(self._had_before) >= _HAD_BEFORE_MAX:
                self._had_before.clear()
            self._had_before[revision] = await last_global.had_before(self._context.store, revision)
        return self._had_before[revision]

    @property
    def seen(self) -> str:
        """Which Global was seen last, as an operator has to write it to agree that it is forgotten."""
        return str(last_global.stored_in(self._context.state) or "")

    def _is_checked(self, kind: Kind) -> bool:
        """Whether Global has checked specs of a kind by the same rules; those of plugins may differ."""
        return self._is_same_version and kind.name in _BUILT_IN and not kind.extensions

    def _objection(self, resource: Resource, kind: Kind) -> str:
        if self._is_other:
            return self.doubt
        stored = self._context.state.get(resource.key)
        return objection_to_global(resource, kind, self._zone) or joining.own_that_differs(
            stored, resource, self._zone
        )

    def _noted(self, delivery: Delivery) -> tuple[Put, ...]:
        """Note how far Global is, together with what came from it; not while it is in doubt."""
        seen = GlobalSeen(self._source, delivery.revision, delivery.transaction)
        return () if self.doubt else (seen.put(),)


async def _messages(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> AsyncIterator[bytes]:
    while True:
        message = await call.read()
        if not isinstance(message, bytes):  # grpc.aio.EOF
            return
        yield message


def objection_to_global(resource: Resource, kind: Kind, zone: str) -> str:
    """Why a zone does not take an object from Global; empty where it does."""
    if resource.zone == zone:
        return "it is this zone's own"
    if not (kind.sync.global_to_zones or kind.sync.across_zones):
        return f"{kind.name} is not for zones"
    if resource.origin != mapping.GLOBAL:
        return "its labels do not say that it came from Global"
    return ""
