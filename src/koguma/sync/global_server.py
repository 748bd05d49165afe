"""Global server: the port on Global to which the control planes of zones connect.

A zone shows a zone token with the scope `cp` before anything of it is read. Of several control planes of one
zone one is connected: the others are told to wait, and come in when its stream ends or is known to be dead.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Protocol

import grpc
import msgspec
import structlog

from koguma.access.token_keys import TokenKeys
from koguma.application.context import Context
from koguma.application.transactions import control_plane_object
from koguma.identity import dataplane_auth, zone_auth
from koguma.identity.claims import ZONE as ZONE_TOKENS
from koguma.identity.claims import ZoneClaims
from koguma.identity.tokens import VerifiedToken
from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.model import names
from koguma.model.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    KogumaError,
    Unauthenticated,
    Unavailable,
)
from koguma.model.kind import Kind
from koguma.model.proxy_report import ProxyReport
from koguma.model.redacted import Redacted
from koguma.model.resource import Key, Resource
from koguma.model.sync_receipt import SyncReceipt
from koguma.model.violation import cut
from koguma.store.contract import Change, Ensure, Transaction
from koguma.sync import mapping, planned_delivery, stream_service
from koguma.sync.connection import Duties, PeerState, SyncConnection
from koguma.sync.held_objects import HeldObjects
from koguma.sync.mapping import Travelling
from koguma.sync.planned_delivery import PlannedDeliveries, PlannedDelivery
from koguma.sync.protocol import messages
from koguma.sync.protocol.catalog import Audience
from koguma.sync.protocol.messages import Ack, Entries, SyncGreeting
from koguma.sync.protocol.publisher import Publisher
from koguma.sync.protocol.sums import packed
from koguma.sync.published_objects import PublishedObjects
from koguma.sync.received_objects import ReceivedObjects

REVIEW_SECONDS: Final = 1.0
OBJECTS_MAX: Final = 100_000  # of one zone that Global stores
_STOP_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1  # between two looks whether a revision has come
_LOOKS_MAX: Final = 50
_LAST_ERRORS_MAX: Final = 1000  # zones
_DETAIL_MAX: Final = 1000  # characters

_log = structlog.get_logger("koguma.sync")


class ZoneNotHere(Unavailable):
    """The zone has no stream to this control plane."""


class _ZoneStream(msgspec.Struct, frozen=True):
    """The stream of a zone, and which of its control planes has it."""

    connection: SyncConnection
    token: VerifiedToken[ZoneClaims]
    instance: str


class ZoneReport(msgspec.Struct, frozen=True):
    """How a zone is, or was when its last stream here ended."""

    state: PeerState
    disconnected_at: datetime | None = None


class ZoneProxyListener(Protocol):
    """Who wants to know of the proxies of zones."""

    def receive(self, zone: str, report: ProxyReport) -> None:
        """What a zone reports of its proxies."""

    def disconnect(self, zone: str) -> None:
        """The zone is gone: nothing is known of its proxies any more."""


class GlobalServer:
    """Serves zones; `publish` keeps what they get up to date."""

    def __init__(self, context: Context, keys: TokenKeys, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._keys = keys
        self._clock = clock
        self._published = PublishedObjects(context.store, self._outgoing, self._switched)
        self._held = HeldObjects(context.store, attrgetter("zone"), self._is_of_a_zone, mapping.content)
        self._disabled = self._disabled_now()
        self._streams: dict[str, _ZoneStream] = {}
        self._last_errors: dict[str, tuple[datetime, str]] = {}
        self._gone: dict[str, ZoneReport] = {}
        self.proxies: ZoneProxyListener | None = None
        self._n_previews = 0
        self._server: grpc.aio.Server | None = None

    # What zones get.

    def _outgoing(self, resource: Resource) -> Travelling | None:
        kind = self._context.kinds.get(resource.kind)
        return None if kind is None else mapping.downward(resource, kind, self._disabled)

    async def publish(self) -> None:
        """Follow the store until cancelled."""
        await self._published.run()

    def _disabled_now(self) -> frozenset[str]:
        return planned_delivery.disabled(self._context.state.listed(ZONE_KIND.name))

    def _switched(self, changes: Sequence[Change]) -> Iterable[Resource]:
        """The objects of zones that were switched off, which others lose, or on again."""
        if changes and not any(change.resource.kind == ZONE_KIND.name for change in changes):
            return ()
        before, self._disabled = self._disabled, self._disabled_now()
        switched = before ^ self._disabled
        return [each for each in self._context.state.all() if each.zone in switched] if switched else ()

    def planned(self, changes: Sequence[Change]) -> Callable[[str], PlannedDelivery]:
        """What each zone would be sent if these changes were written; one that is away is sent all kinds."""
        deliveries = PlannedDeliveries(self._context.state, changes, self._context.kinds.get)
        every = frozenset(kind.name for kind in self._context.kinds)
        peers = {zone: frozenset(state.greeting.kinds) for zone, state in self.states().items()}
        return lambda zone: deliveries.of(_audience(zone, peers.get(zone, every)))

    async def wait_for(self, zone: str, seconds_max: float) -> bool:
        """Wait until a zone has got all that was written until now; returns whether it has."""
        revision, loop = self._context.store.state.revision, asyncio.get_running_loop()
        until = loop.time() + seconds_max
        while (receipt := self.receipt(zone)) is None or receipt.revision < revision:
            if loop.time() > until or zone not in self._streams:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _is_of_a_zone(self, resource: Resource) -> bool:
        kind = self._context.kinds.get(resource.kind)
        return kind is not None and mapping.came_from_zone(resource, kind)

    # Streams of zones.

    async def listen(self, host: str, port: int, certificate: str, key: Redacted) -> int:
        """Listen for zones on a port (0: any free one), and return it."""
        server = grpc.aio.server(
            options=stream_service.OPTIONS, maximum_concurrent_rpcs=stream_service.STREAMS_MAX
        )
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        preview: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self._preview)
        methods = {stream_service.METHOD: handler, stream_service.PREVIEW: preview}
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(stream_service.SERVICE, methods)]
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        credentials = grpc.ssl_server_credentials([(key.reveal().encode(), certificate.encode())])
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server
        return bound

    async def stop(self) -> None:
        """End all streams."""
        if self._server is not None:
            await self._server.stop(_STOP_SECONDS)

    async def review(self) -> None:
        """End the streams of zones whose token is not good any more; looks every second, until cancelled."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            for zone, stream in list(self._streams.items()):
                try:
                    self._check(zone, stream.token)
                except KogumaError as error:
                    stream.connection.end(error)

    async def _serve(
        self, incoming: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        try:
            zone, token = self._admitted(context.invocation_metadata() or ())
        except AlreadyExists as error:  # not worth a word: this is how control planes of a zone wait
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, cut(error.detail, _DETAIL_MAX))
        except KogumaError as error:
            _log.warning("a zone was not let in", peer=context.peer(), reason=error.detail)
            await context.abort(_code(error), cut(error.detail, _DETAIL_MAX))
        try:
            await self._connected(zone, token, incoming, context)
        except KogumaError as error:
            self._note(zone, error.detail)
            _log.warning("the stream of a zone ended", zone=zone, reason=error.detail)
            await context.abort(_code(error), cut(error.detail, _DETAIL_MAX))
        except grpc.aio.BaseError:  # the zone is gone
            return

    async def _preview(
        self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> AsyncIterator[bytes]:
        """Show a zone what it would get; it takes no part by that, and nothing is noted of it."""
        try:
            zone, _ = self._admitted(context.invocation_metadata() or ())
            peer = messages.decoded(request)
            if not isinstance(peer, SyncGreeting):
                raise BadRequest("a preview begins with a greeting")
            if self._n_previews >= stream_service.PREVIEWS_MAX:
                raise Unavailable("Global shows others what they would get; try again")
        except KogumaError as error:
            _log.warning("a zone was shown nothing", peer=context.peer(), reason=error.detail)
            await context.abort(_code(error), cut(error.detail, _DETAIL_MAX))
        self._n_previews += 1
        try:
            await self._published.is_loaded.wait()
            yield messages.encoded(self._greeting(b""))
            audience = _audience(zone, frozenset(peer.kinds))
            publisher = Publisher(self._published.catalog, audience, self._published.content)
            if (wanted := publisher.compare(packed(()))) is not None:
                publisher.receive_entries(Entries((), is_last=True))
            while wanted is not None and (batch := publisher.next_batch()) is not None:
                yield messages.encoded(batch)
                publisher.receive_ack(Ack(batch.number))
                await asyncio.sleep(0)
        finally:
            self._n_previews -= 1

    def _admitted(self, metadata: Any) -> tuple[str, VerifiedToken[ZoneClaims]]:
        headers = {str(key): value for key, value in metadata if isinstance(value, str)}
        zone = headers.get(stream_service.ZONE_HEADER, "")
        shown = headers.get(stream_service.AUTHORIZATION, "")
        if not shown:
            raise Unauthenticated(
                "a zone needs a zone token with the scope cp; make one on Global: koguma token zone --zone"
                " NAME --scope cp"
            )
        ring = self._keys.ring(ZONE_TOKENS)
        token = zone_auth.verified_token(ring, dataplane_auth.without_bearer(shown), self._clock())
        if not names.is_dns1035_label(zone):
            raise BadRequest(f'"{cut(zone, 100)}" cannot be a zone: {names.DNS1035_MESSAGE}')
        zone_auth.check(token.claims, stream_service.SCOPE, zone)
        if instance := headers.get(stream_service.INSTANCE_HEADER, ""):
            self._check_turn(zone, instance)
        return zone, token

    def _check(self, zone: str, token: VerifiedToken[ZoneClaims]) -> None:
        token.check(self._keys.ring(ZONE_TOKENS), self._clock())
        zone_auth.check(token.claims, stream_service.SCOPE, zone)

    async def _connected(
        self,
        zone: str,
        token: VerifiedToken[ZoneClaims],
        incoming: AsyncIterator[bytes],
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> None:
        await self._ensure_zone(zone)
        received = ReceivedObjects(
            self._context,
            f"zone:{zone}",
            lambda resource, kind: objection_to_zone(resource, kind, zone),
            keeps_status=False,
            objects_max=OBJECTS_MAX,
        )
        connection = SyncConnection(
            self._published,
            lambda: self._held.of(zone),
            received,
            lambda peer: _audience(zone, frozenset(peer.kinds)),
            self._clock,
            Duties(take_report=lambda report: self._take_report(zone, report)),
        )

        seen_transaction = ""

        async def check(peer: SyncGreeting) -> bool:
            nonlocal seen_transaction
            if peer.name != zone:
                text = f'the zone says that it is "{cut(peer.name, 100)}", and its stream is of "{zone}"'
                raise BadRequest(text)
            self._take_turn(zone, _ZoneStream(connection, token, peer.instance))
            _log.info("a zone is connected", zone=zone, instance=peer.instance, peer=context.peer())
            seen_transaction = await self._transaction_at(peer.seen)
            return False  # what a zone no longer has is not kept: it is the zone's

        try:
            await connection.run(
                incoming,
                context.write,
                lambda sums: self._greeting(sums, seen_transaction),
                check,
                greets_first=False,
            )
        finally:
            stream = self._streams.get(zone)
            if stream is not None and stream.connection is connection:
                del self._streams[zone]
                self._note_gone(zone, connection.state)
                self._note(zone, "the stream ended")  # whoever knows a better reason notes that instead
                if self.proxies is not None:
                    self.proxies.disconnect(zone)
                _log.info("a zone is gone", zone=zone)

    async def _transaction_at(self, revision: int) -> str:
        """The transaction of a revision; empty where it is not kept, or never was."""
        store = self._context.store
        change = await store.change_at(revision)
        if change is None:
            return ""
        for _ in range(_LOOKS_MAX):  # another control plane of the store wrote it a moment ago
            if store.state.revision >= revision:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return change.transaction

    def _take_report(self, zone: str, report: ProxyReport) -> None:
        if self.proxies is not None:
            self.proxies.receive(zone, report)

    async def ask(self, zone: str, name: str, body: bytes, bytes_max: int, seconds_max: float) -> bytes:
        """A zone's answer to a question; ZoneNotHere where it is not connected to this control plane."""
        stream = self._streams.get(zone)
        if stream is None:
            raise ZoneNotHere(f'zone "{zone}" is not connected')
        return await stream.connection.ask(name, body, bytes_max, seconds_max)

    def _take_turn(self, zone: str, stream: "_ZoneStream") -> None:
        """Let a stream be the one of its zone."""
        self._check_turn(zone, stream.instance)
        if (older := self._streams.get(zone)) is not None:  # it died unnoticed
            older.connection.end(Unavailable("the same control plane has opened a newer stream"))
        self._streams[zone] = stream

    def _check_turn(self, zone: str, instance: str) -> None:
        """A control plane has to wait while the stream of another one of its zone is alive."""
        older = self._streams.get(zone)
        if older is not None and older.instance != instance:
            text = f'zone "{zone}" is connected by its control plane {older.instance}; this one has to wait'
            raise AlreadyExists(text)

    async def _ensure_zone(self, zone: str) -> None:
        if self._context.state.get(_zone_key(zone)) is None:
            object_ = control_plane_object(
                self._context, {"type": ZONE_KIND.name, "name": zone, "enabled": True}
            )
            await self._context.store.write(Transaction((Ensure(object_),), f"zone:{zone}"))

    def _greeting(self, sums: bytes, seen_transaction: str | None = None) -> SyncGreeting:
        about = self._context.about
        return SyncGreeting(
            name="",
            version=about.version,
            instance=about.instance_id,
            source=about.cluster_id(),
            revision=self._context.state.revision,
            kinds=tuple(kind.name for kind in self._context.kinds if kind.sync.zone_to_global),
            sums=sums,
            features=(messages.ALIVE, messages.PROXY_STATES),
            transaction=self._context.state.transaction,
            seen_transaction=seen_transaction,
        )

    def _note(self, zone: str, text: str) -> None:
        self._last_errors.pop(zone, None)
        self._last_errors[zone] = self._clock(), text
        while len(self._last_errors) > _LAST_ERRORS_MAX:
            self._last_errors.pop(next(iter(self._last_errors)))

    def _note_gone(self, zone: str, state: PeerState | None) -> None:
        if state is not None:
            self._gone.pop(zone, None)
            self._gone[zone] = ZoneReport(state, self._clock())
            while len(self._gone) > _LAST_ERRORS_MAX:
                self._gone.pop(next(iter(self._gone)))

    # How they are.

    def reports(self) -> Mapping[str, ZoneReport]:
        """The zones that are, or were, connected here, and whose Zone is stored."""
        found = {**self._gone, **{zone: ZoneReport(state) for zone, state in self.states().items()}}
        stored = self._context.state
        return {zone: report for zone, report in found.items() if stored.get(_zone_key(zone)) is not None}

    def states(self) -> Mapping[str, PeerState]:
        """The zones that are connected here."""
        found = {zone: stream.connection.state for zone, stream in self._streams.items()}
        return {zone: state for zone, state in sorted(found.items()) if state is not None}

    def receipt(self, zone: str) -> SyncReceipt | None:
        """What a zone has; None where it is not connected here."""
        stream = self._streams.get(zone)
        return stream.connection.receipt if stream is not None else None

    def last_error(self, zone: str) -> tuple[datetime, str] | None:
        """Why the last stream of a zone ended."""
        return self._last_errors.get(zone)


def _zone_key(zone: str) -> Key:
    return Key(ZONE_KIND.name, "", "", "", zone)


def _audience(zone: str, kinds: frozenset[str]) -> Audience:
    return lambda reach: reach.zone != zone and reach.kind in kinds and reach.only_to in ("", zone)


def objection_to_zone(resource: Resource, kind: Kind, zone: str) -> str:
    """Why Global does not take an object from a zone; empty where it does."""
    if not kind.sync.zone_to_global:
        return f"{kind.name} is written on Global"
    if resource.zone != zone:
        return f'it is of zone "{resource.zone}"' if resource.zone else "it is of Global"
    sent = mapping.upward(resource, kind, zone)
    if sent is None or sent.core_name != resource.core_name or sent.labels != resource.labels:
        return "its name or its labels are not those of an object of this zone"
    return ""


def _code(error: KogumaError) -> grpc.StatusCode:
    codes = (
        (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
        (Forbidden, grpc.StatusCode.PERMISSION_DENIED),
        (Unavailable, grpc.StatusCode.UNAVAILABLE),
        (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), grpc.StatusCode.INVALID_ARGUMENT)
