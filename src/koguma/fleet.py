"""Fleet: the connected proxies. Lets them in, works out what each is to have, and hands it on.

At most one offer is pending per proxy and the newest wins. A proxy whose configuration a change does not
touch is not looked at.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec
import structlog

from koguma.api.context import Context, mesh_key
from koguma.api.tokens import Keys
from koguma.certificates import Certificates
from koguma.control import Control
from koguma.core import spiffe
from koguma.core.build import encoding, network
from koguma.core.build import snapshot as compiled
from koguma.core.build.network import Link
from koguma.core.incremental import Db
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import SECRET, Bundle, Failure, Piece, Snapshot, bundle
from koguma.identity import dataplane_auth
from koguma.identity.claims import DATAPLANE
from koguma.identity.sds import Secret
from koguma.model import kri
from koguma.model.errors import NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.registration import Registration, document
from koguma.xds.contract import Hello, Line, Offer, ProxyStatus, Rejection

BATCH: Final = 32  # proxies that join at a time, so that questions of people wait for milliseconds only
DEREGISTRATION_SECONDS: Final = 10.0

_log = structlog.get_logger("koguma.fleet")


class ProxyView(msgspec.Struct, frozen=True):
    """How a proxy is, for people."""

    key: Key
    core_name: str
    status: ProxyStatus
    revision: int  # of the store, that it is known to have
    behind_seconds: float
    connected_at: datetime
    envoy: str
    failures: tuple[Failure, ...]


class ProxyLine:
    """One connected proxy."""

    def __init__(self, fleet: "Fleet", hello: Hello, proxy: Resource, *, registered: bool) -> None:
        self.key = proxy.key
        self.proxy = proxy
        self.registered = registered
        self.hello = hello
        self.link = link_of(hello.metadata)
        self.connected_at = fleet.clock()
        self.compiled: Snapshot | None = None  # without secrets
        self.uris: tuple[str, ...] = ()
        self.status = ProxyStatus("connecting", 0, 0)
        self.behind_since: datetime | None = self.connected_at
        self._fleet = fleet
        self.secrets_taken: dict[str, str] = {}  # versions by name
        self._offer: Offer | None = None
        self._fresh = asyncio.Event()

    async def next_offer(self) -> Offer:
        """The newest offer that was not taken yet."""
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            if self._offer is not None:
                return self._offer

    def offer(self, revision: int, snapshot: Snapshot) -> None:
        """Let the proxy have this, unless it is what was offered last."""
        if self._offer is not None and self._offer.snapshot == snapshot:
            return
        self._offer = Offer(revision, snapshot)
        self.behind_since = self.behind_since or self._fleet.clock()
        self._fresh.set()

    @property
    def offered(self) -> Snapshot:
        """What was offered last."""
        return self._offer.snapshot if self._offer else Snapshot()

    def report(self, status: ProxyStatus) -> None:
        """Note how far the proxy is."""
        self.status = status
        if status.state == "synced" and self._offer and status.acked >= self._offer.revision:
            self.behind_since = None
        taken = dict(status.acked_versions.get(SECRET) or {})
        if taken != self.secrets_taken:
            self.secrets_taken = taken
            self._fleet.secrets_acked(self, taken)

    async def close(self) -> None:
        """The stream is over."""
        await self._fleet.disconnect(self)


def link_of(metadata: Mapping[str, Json]) -> Link:
    """What a proxy's metadata says of it; what does not fit is as good as absent."""
    features = metadata.get("features")
    return Link(
        features=tuple(sorted(str(each) for each in features)) if isinstance(features, list) else (),
        workdir=str(metadata.get("workdir") or ""),
        admin_port=_port(metadata.get("dataplane.admin.port")),
        dns_port=_port(metadata.get("dataplane.dns.port")),
    )


def _port(text: Json) -> int:
    found = str(text or "")
    return int(found) if found.isascii() and found.isdigit() and int(found) < 1 << 16 else 0


class Fleet:
    """The connected proxies, and what each is to have."""

    def __init__(
        self,
        context: Context,
        control: Control,
        keys: Keys,
        certificates: Certificates,
        encoder: Encoder,
        clock: Callable[[], datetime],
        poke: Callable[[str], None] = lambda _mesh: None,
    ) -> None:
        self.context = context
        self.clock = clock
        self._control = control
        self._keys = keys
        self._certificates = certificates
        self._encoder = encoder
        self._poke = poke
        self._registration = Registration(context)
        self._lines: dict[Key, ProxyLine] = {}
        self._joining: dict[Key, ProxyLine] = {}
        self._leaving: set[Key] = set()
        self._removals: dict[Key, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._revision = 0
        self._loads = 0
        self._stopping = False
        self._told: set[Failure] = set()

    # The door.

    async def connect(self, hello: Hello) -> Line:
        """Let a proxy in, with a token that is for it, and a Dataplane that is there or that it brings."""
        if self.context.state.get(mesh_key(hello.mesh)) is None:
            raise NotFound(f'there is no mesh "{hello.mesh}"')
        ring = self._keys.ring(DATAPLANE, hello.mesh)
        brought = hello.metadata.get("dataplane.resource")
        if brought:
            given = document(str(brought), hello.mesh, hello.name)
            dataplane_auth.authenticate(ring, hello.token, self.clock(), self._registration.draft(given))
            proxy = await self._registration.register(given)
        else:
            proxy = self._known(hello)
            dataplane_auth.authenticate(ring, hello.token, self.clock(), proxy)
        line = ProxyLine(self, hello, proxy, registered=bool(brought))
        removal = self._removals.pop(proxy.key, None)
        if removal is not None:
            removal.cancel()
        self._lines[proxy.key] = self._joining[proxy.key] = line
        self._leaving.discard(proxy.key)
        self._wake.set()
        self._poke(hello.mesh)
        return line

    def _known(self, hello: Hello) -> Resource:
        found = self.context.state.named("Dataplane", hello.mesh, hello.name)
        if found is None:
            text = f'there is no Dataplane "{hello.name}" in mesh "{hello.mesh}"'
            raise NotFound(violations=[Violation("name", text, "missing")])
        return found

    async def disconnect(self, line: ProxyLine) -> None:
        """A stream is over; what the proxy registered goes after a while."""
        if self._lines.get(line.key) is not line:
            return  # another stream of the same proxy has taken over
        del self._lines[line.key]
        self._joining.pop(line.key, None)
        self._leaving.add(line.key)
        self._certificates.forget(line.key)
        self._wake.set()
        self._poke(line.key.mesh)
        if line.registered and not self._stopping:
            later = self._registration.remove_later(line.proxy, DEREGISTRATION_SECONDS)
            task = asyncio.create_task(later, name=f"deregister {line.key.name}")
            self._removals[line.key] = task
            task.add_done_callback(lambda _done: self._removals.pop(line.key, None))

    @property
    def connected(self) -> frozenset[Key]:
        """The proxies that have a stream here."""
        return frozenset(self._lines)

    def views(self, mesh: str = "") -> Iterator[ProxyView]:
        """How the proxies are, in key order."""
        now = self.clock()
        for key in sorted(self._lines):
            line = self._lines[key]
            if mesh and key.mesh != mesh:
                continue
            behind = line.behind_since
            yield ProxyView(
                key=key,
                core_name=line.proxy.core_name,
                status=line.status
                if behind is None or line.status.state != "synced"
                else _behind(line.status),
                revision=self._revision if behind is None else line.status.acked,
                behind_seconds=(now - behind).total_seconds() if behind else 0.0,
                connected_at=line.connected_at,
                envoy=line.hello.version,
                failures=line.offered.failures,
            )

    def shown(self, mesh: str = "") -> Iterator[Mapping[str, Json]]:
        """How the proxies are, as the API shows it."""
        short = self.context.kinds["Dataplane"].short
        for view in self.views(mesh):
            identifier = self._lines[view.key].proxy.kri(short)
            yield {
                "name": view.core_name,
                "mesh": view.key.mesh,
                "kri": str(identifier or ""),
                "state": view.status.state,
                "revision": view.revision,
                "behindSeconds": round(view.behind_seconds, 3),
                "connectedAt": view.connected_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "envoy": view.envoy,
                "instance": self.context.about.instance_id,
                "rejections": [_rejection(each) for each in view.status.rejections],
                "failures": [msgspec.to_builtins(each) for each in view.failures],
            }

    def line(self, key: Key) -> ProxyLine | None:
        """The connection of a proxy, if it has one here."""
        return self._lines.get(key)

    # The loop.

    async def run(self) -> None:
        """Keep every connected proxy's offer as new as the store, until cancelled."""
        listener = asyncio.create_task(self._listen(), name="fleet news")
        try:
            while True:
                await self._wait()
                try:
                    await self._round()
                except Unavailable as error:
                    _log.warning("proxies wait for the store", reason=error.detail)
                    await asyncio.sleep(1)
                    self._wake.set()
        finally:
            listener.cancel()

    async def stop(self) -> None:
        """Proxies that go from now on are not deregistered: it is us who leave."""
        self._stopping = True
        for task in list(self._removals.values()):
            task.cancel()

    async def sweep(self, delay_seconds: float) -> None:
        """Remove what proxies registered before this control plane started, unless they come back in time.

        Only for a control plane that is alone on its store: of another one's proxies it knows nothing.
        """
        await asyncio.sleep(delay_seconds)
        for resource in self._registration.left_behind():
            if resource.key not in self._lines:
                await self._registration.remove(resource)

    async def _listen(self) -> None:
        """Every change of the store wakes the loop; what it means is read elsewhere."""
        store = self.context.store
        while True:
            news = store.watch(None, store.state.revision)
            self._wake.set()
            try:
                while True:
                    await news.next_batch(None)
                    self._wake.set()
            except Exception as error:  # noqa: BLE001 - whatever it is, proxies must not go stale for it
                _log.warning("news of the store were interrupted", reason=str(error))
                await asyncio.sleep(0.2)

    async def _wait(self) -> None:
        due = self._certificates.due()
        left = None if due is None else max((due - self.clock()).total_seconds(), 0.0)
        with contextlib.suppress(TimeoutError):  # then certificates are due
            await asyncio.wait_for(self._wake.wait(), left)
        self._wake.clear()

    async def _round(self) -> None:
        joining = [self._joining.pop(key) for key in list(self._joining)[:BATCH]]
        if self._joining:
            self._wake.set()
        leaving, self._leaving = self._leaving, set()
        changed, revision = await self._control.beside(lambda db: self._compile(db, joining, leaving))
        self._revision = revision
        for line in (*joining, *(self._lines[key] for key in changed if key in self._lines)):
            if line.key in changed:
                line.compiled, line.uris = changed[line.key]
        self._offer(revision, {line.key for line in joining} | set(changed))

    def _compile(
        self, db: Db, joining: Iterable[ProxyLine], leaving: Iterable[Key]
    ) -> dict[Key, tuple[Snapshot | None, tuple[str, ...]]]:
        """Beside the loop: what changed for whom."""
        again: Iterable[ProxyLine] = ()
        if self._loads != self._control.loads:  # the database began anew, and knows nobody
            self._loads = self._control.loads
            db.set(encoding.ENCODER, "envoy", self._encoder)
            again = tuple(self._lines.values())
        for key in leaving:
            db.unwatch(compiled.of, key)
            db.remove(network.LINKS, key)
        touched: dict[Key, None] = {}
        for line in (*joining, *again):
            db.set(network.LINKS, line.key, line.link)
            touched[line.key] = None
        news = {asked.args[0] for asked in db.changed() if asked.question is compiled.of}
        for key in touched:
            db.watch(compiled.of, key)
        return {key: (compiled.of(db, key), spiffe.identity(db, key)) for key in sorted(news | set(touched))}

    def _offer(self, revision: int, keys: Iterable[Key]) -> None:
        for key in (*keys, *self._certificates.changed()):
            line = self._lines.get(key)
            if line is None or line.compiled is None:
                continue
            secrets = self._secrets(line)
            is_other = secrets not in line.offered.bundles
            line.offer(revision, Snapshot((*line.compiled.bundles, secrets)))
            if is_other and line.secrets_taken:
                # What it still has from before mTLS was switched off and on is not sent, nor answered again.
                self.secrets_acked(line, line.secrets_taken)
            self._tell(line)

    def _secrets(self, line: ProxyLine) -> Bundle:
        found = self._certificates.of(line.key, line.uris)
        return bundle(self._secret(each) for each in found or ())

    def _secret(self, secret: Secret) -> Piece:
        # A secret's version says what it is for, not what its bytes are: whoever has it needs no other key.
        made = self._encoder.piece(SECRET, secret.name, secret.data())
        return msgspec.structs.replace(made, version=secret.version)

    def _tell(self, line: ProxyLine) -> None:
        for failure in line.compiled.failures if line.compiled else ():
            if failure not in self._told:
                self._told.add(failure)
                _log.error(
                    "a part of the configuration cannot be made; proxies keep what they have",
                    type=failure.type,
                    name=failure.name,
                    origin=failure.origin,
                    reason=failure.text,
                )

    def secrets_acked(self, line: ProxyLine, versions: Mapping[str, str]) -> None:
        """A proxy has taken certificates; that may let the next step of a rotation happen."""
        moved = [self._certificates.acked(line.key, name, version) for name, version in versions.items()]
        self._poke(line.key.mesh)
        if any(moved):
            self._wake.set()


def _rejection(rejection: Rejection) -> Mapping[str, Json]:
    """A NACK with the objects that caused it: those that the refused names identify."""
    objects = [name for name in rejection.names if kri.is_kri(name)]
    return {**msgspec.to_builtins(rejection), "objects": objects}


def _behind(status: ProxyStatus) -> ProxyStatus:
    return msgspec.structs.replace(status, state="behind")
