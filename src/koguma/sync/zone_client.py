"""Zone client: the connection of a zone's control plane to Global, kept up for as long as it runs.

While Global is away the zone works on with what it has. Of several control planes of a zone Global lets one
in; the others ask again every few seconds, and what they would send is the same.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import grpc
import msgspec
import structlog

from koguma.application.context import Context
from koguma.model.errors import KogumaError
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource
from koguma.store.contract import Put
from koguma.sync import last_global, mapping, stream_service
from koguma.sync.connection import PeerState, SyncConnection
from koguma.sync.last_global import GlobalSeen
from koguma.sync.mapping import Travelling
from koguma.sync.protocol.messages import CONFIG_MAX, BrokenProtocol, SyncGreeting
from koguma.sync.protocol.subscriber import Delivery
from koguma.sync.published_objects import PublishedObjects
from koguma.sync.received_objects import ReceivedObjects

OBJECTS_MAX: Final = 1_000_000  # of Global that a zone stores
_RETRY_SECONDS: Final = (0.5, 10.0)
_STEADY_SECONDS: Final = 30.0  # after which a connection counts as good, and the next try is soon

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
        self._received = ReceivedObjects(
            context,
            "global",
            self._objection,
            lambda resource, kind: mapping.came_from_global(resource, kind, self._zone),
            keeps_status=True,
            objects_max=OBJECTS_MAX,
            beside=self._noted,
        )
        self._connection: SyncConnection | None = None
        self.last_error: tuple[datetime, str] | None = None
        self.doubt = ""  # why what Global no longer has is kept; empty where it is not
        self._is_other = False
        self._source = ""
        self.is_waiting = False  # because another control plane of the zone is connected

    def _outgoing(self, resource: Resource) -> Travelling | None:
        kind = self._context.kinds.get(resource.kind)
        sent = (
            None
            if kind is None or mapping.is_awaited(resource)
            else mapping.upward(resource, kind, self._zone)
        )
        return None if sent is None else Travelling(sent)

    @property
    def state(self) -> PeerState | None:
        """How Global is; None while it is not connected."""
        return self._connection.state if self._connection is not None else None

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
                _log.warning("Global is away; the zone works on", address=self._target.address, reason=reason)
            self.last_error = self._clock(), reason
            if asyncio.get_running_loop().time() - began > _STEADY_SECONDS:
                pause = _RETRY_SECONDS[0]
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - zones that lost Global together
            pause = min(pause * 2, _RETRY_SECONDS[1])

    async def _connect(self) -> str:
        """Connect, and sync until that ends; returns why."""
        try:
            credentials, metadata = self._credentials(), self._metadata()
        except OSError as error:
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
                return str(error.details())
            except (grpc.aio.UsageError, asyncio.InvalidStateError):  # a write to a stream that has ended
                return str(await call.details())
            except KogumaError as error:
                self.is_waiting = False
                return error.detail
            finally:
                self._connection = None
                call.cancel()
        return "Global ended the connection"

    async def _synced(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        connection = self._connection = SyncConnection(
            self._published, self._received, self._audience, self._clock
        )
        await connection.run(_messages(call), call.write, self._greeting, self._checked)

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            Path(self._target.ca_file).read_bytes() if self._target.ca_file else None
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = Path(self._target.token_file).read_text(encoding="utf-8").strip()
        return (
            (stream_service.ZONE_HEADER, self._zone),
            (stream_service.INSTANCE_HEADER, self._context.about.instance_id),
            (stream_service.AUTHORIZATION, f"Bearer {token}"),
        )

    def _audience(self, peer: SyncGreeting) -> Callable[[Key, str], bool]:
        kinds = frozenset(peer.kinds)
        return lambda key, _only_to: key.kind in kinds

    def _greeting(self, sums: bytes) -> SyncGreeting:
        about = self._context.about
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
        )

    def _config(self) -> str:
        config = msgspec.json.encode(self._context.about.settings(), order="sorted").decode()
        return config if len(config) <= CONFIG_MAX else ""

    def _checked(self, peer: SyncGreeting) -> bool:
        if peer.name:
            raise BrokenProtocol(f'"{peer.name}" answers, which is a zone and not Global')
        self.is_waiting = False
        if self.last_error is not None:
            _log.info("Global is there", address=self._target.address, version=peer.version)
            self.last_error = None
        self._source = peer.source
        seen = last_global.stored_in(self._context.state)
        is_known = seen is None or str(seen) == self._target.accepted
        self._is_other = not is_known and seen is not None and seen.source != peer.source
        self.doubt = ""
        if not is_known and seen is not None:
            if self._is_other:
                self.doubt = f"this is another Global ({peer.source}) than before; nothing is taken from it"
            elif peer.revision < seen.revision:
                text = f"Global is at revision {peer.revision}, and was at {seen.revision}"
                self.doubt = f"{text}: it was restored from a backup"
        if self.doubt:
            _log.warning("what Global does not have any more is kept", reason=self.doubt, seen=str(seen))
        return bool(self.doubt)

    @property
    def seen(self) -> str:
        """Which Global was seen last, as an operator has to write it to agree that it is forgotten."""
        return str(last_global.stored_in(self._context.state) or "")

    def _objection(self, resource: Resource, kind: Kind) -> str:
        return self.doubt if self._is_other else objection_to_global(resource, kind, self._zone)

    def _noted(self, delivery: Delivery) -> tuple[Put, ...]:
        """Note how far Global is, together with what came from it; not while it is in doubt."""
        return () if self.doubt else (GlobalSeen(self._source, delivery.revision).put(),)


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
