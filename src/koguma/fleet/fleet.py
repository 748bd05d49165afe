"""Fleet: the connected proxies. Lets them in, works out what each is to have, and hands it on.

At most one offer is pending per proxy and the newest wins. A proxy whose configuration a change does not
touch is not looked at.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

import structlog

from koguma.application.context import Context, mesh_key
from koguma.application.live_engine import LiveEngine
from koguma.core import spiffe
from koguma.core.build import encoding, network
from koguma.core.build import snapshot as compiled
from koguma.core.build.watching import Watching
from koguma.core.incremental import Db
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import Failure, Snapshot
from koguma.fleet.certificates import Certificates
from koguma.fleet.connection import ProxyLine, ProxyView, run_of, shown, status_of
from koguma.fleet.gate import ProxyGate, is_registered
from koguma.fleet.offering import Offering
from koguma.fleet.quarantine import Quarantine, held
from koguma.fleet.refused_proxies import RefusedProxies
from koguma.fleet.registration import RETRY_SECONDS, Registration, document
from koguma.identity import dataplane_auth
from koguma.kinds import service_probe
from koguma.model.errors import Conflict, KogumaError, NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.waiting import log_waiting
from koguma.xds.contract import ConnectRequest, ProxyConnection

BATCH: Final = 32  # proxies that join at a time, so that questions of people wait for milliseconds only
PREPARED_SECONDS_MAX: Final = 3.0
DEREGISTRATION_SECONDS: Final = 10.0
# A change for many proxies is given some time to reach them before the next one is looked at: one that comes
# alone does not wait, and what changes together comes together. While proxies come in, each of them changes
# something for all others, so that is done in larger steps.
REST_SECONDS_EACH: Final = 0.00025
REST_SECONDS_EACH_OF_MANY: Final = 0.002
REST_SECONDS_MAX: Final = 5.0
MANY_SECONDS: Final = 1.0  # that proxies count as coming in after one did

_log = structlog.get_logger("koguma.fleet")


class Fleet:
    """The connected proxies, and what each is to have."""

    def __init__(
        self,
        context: Context,
        control: LiveEngine,
        gate: ProxyGate,
        certificates: Certificates,
        encoder: Encoder,
        clock: Callable[[], datetime],
        poke: Callable[[str], None] = lambda _mesh: None,
    ) -> None:
        self.context = context
        self.clock = clock
        self._control = control
        self.gate = gate
        self._certificates = certificates
        self._encoder = encoder
        self.quarantine = Quarantine(context)
        self.quarantine.load()
        self._poke = poke
        self.refused_proxies = RefusedProxies(clock)
        self._registration = Registration(context, gate)
        self._lines: dict[Key, ProxyLine] = {}
        self._joining: dict[Key, ProxyLine] = {}
        self._leaving: set[Key] = set()
        self._removals: dict[Key, asyncio.Task[None]] = {}
        self._replaced: dict[Key, set[str]] = {}  # runs of connected proxies that gave way to a later one
        self._wake = asyncio.Event()
        self._rest_until = 0.0
        self._joined_at = 0.0
        self._revision = 0
        self._watching: Watching | None = None
        self._stopping = False
        self._connected: frozenset[Key] | None = None
        self._notes: set[asyncio.Task[None]] = set()
        self.n_rounds_failed = 0
        self._begins_anew = False  # after a round that failed
        self._suspects: set[Key] = set()  # proxies that refused something, until it is known who caused it
        self._offering = Offering(self._lines, self.quarantine, certificates, encoder)

    # The door.

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is a valid one, of whatever proxy."""
        self.gate.authenticate(token)

    async def connect(self, hello: ConnectRequest) -> ProxyConnection:
        """Let a proxy in, with a token that is for it, and a Dataplane that is there or that it brings."""
        try:
            line = await self._connected_line(hello)
        except KogumaError as error:
            self.refused_proxies.refuse("xds", hello.mesh, hello.name, hello.peer, error)
            raise
        self.refused_proxies.admit(hello.mesh, hello.name)
        return line

    async def _connected_line(self, hello: ConnectRequest) -> ProxyConnection:
        if self.context.state.get(mesh_key(hello.mesh)) is None:
            raise NotFound(f'there is no mesh "{hello.mesh}"')
        token = self.gate.shown(hello.mesh, hello.token)
        claims = token.claims
        brought = hello.metadata.get("dataplane.resource")
        if brought:
            dataplane_auth.check_name(claims, hello.mesh, hello.name)
            plan = self._registration.plan(document(str(brought), hello.mesh, hello.name), claims)
            self._refuse_replaced(hello, plan.resource)
            proxy = await self._registration.register(plan)
        else:
            proxy = self._known(hello)
            self.gate.check_stored(claims, proxy)
            self._refuse_replaced(hello, proxy)
        line = ProxyLine(
            self,
            hello,
            proxy,
            self.gate.admission(token, proxy),
            registered=bool(brought) and is_registered(proxy),
            identity_tags=self.gate.identity_tags(claims, proxy),
        )
        self._replace(line)
        removal = self._removals.pop(line.key, None)
        if removal is not None:
            removal.cancel()
        self._lines[line.key] = self._joining[line.key] = line
        self._connected = None
        self._leaving.discard(line.key)
        self._wake.set()
        self._poke(hello.mesh)
        return line

    def _refuse_replaced(self, hello: ConnectRequest, proxy: Resource) -> None:
        """Two runs of one proxy would take each other's place for ever; the later one has it."""
        if run_of(hello, proxy.labels) in self._replaced.get(proxy.key, ()):
            text = f'a later run of proxy "{hello.name}" has taken the place of this one'
            raise Conflict(f"{text}; stop one of them, or give it a name of its own")

    def _replace(self, line: ProxyLine) -> None:
        older = self._lines.get(line.key)
        if older is not None and older.run not in ("", line.run):
            self._replaced.setdefault(line.key, set()).add(older.run)

    def _known(self, hello: ConnectRequest) -> Resource:
        found = self.context.state.named("Dataplane", hello.mesh, hello.name)
        if found is None:
            text = f'there is no Dataplane "{hello.name}" in mesh "{hello.mesh}"'
            raise NotFound(text, violations=[Violation("name", text, "missing")])
        return found

    async def disconnect(self, line: ProxyLine) -> None:
        """A stream is over; what the proxy registered goes after a while."""
        if self._lines.get(line.key) is not line:
            return  # another stream of the same proxy has taken over
        del self._lines[line.key]
        self._connected = None
        self._joining.pop(line.key, None)
        self._replaced.pop(line.key, None)
        self._offering.forget(line.key)
        self._leaving.add(line.key)
        self._certificates.forget(line.key)
        self._wake.set()
        self._poke(line.key.mesh)
        if line.registered and not self._stopping:
            later = self._registration.remove_later(line.proxy, DEREGISTRATION_SECONDS)
            task = self.context.background.once(f"deregistration of {line.key.name}", later)
            self._removals[line.key] = task
            task.add_done_callback(lambda _done: self._removals.pop(line.key, None))

    @property
    def connected(self) -> frozenset[Key]:
        """The proxies that have a stream here; the same set until one comes or goes."""
        if self._connected is None:
            self._connected = frozenset(self._lines)
        return self._connected

    def n_by_state(self) -> Mapping[str, int]:
        """How many proxies are in each state; as `views` would say, for one who only counts."""
        found: Counter[str] = Counter()
        for key, line in self._lines.items():
            state = "behind" if line.status.state == "synced" and line.behind_since else line.status.state
            found["nack" if self.quarantine.of(key) else state] += 1
        return found

    def views(self, mesh: str = "") -> Iterator[ProxyView]:
        """How the proxies are, in key order."""
        now = self.clock()
        for key in sorted(self._lines):
            line = self._lines[key]
            if mesh and key.mesh != mesh:
                continue
            behind, held_back = line.behind_since, tuple(self.quarantine.of(key).values())
            yield ProxyView(
                key=key,
                core_name=line.proxy.core_name,
                status=status_of(line.status, is_behind=behind is not None, is_held=bool(held_back)),
                revision=self._revision if behind is None else line.status.acked,
                behind_seconds=(now - behind).total_seconds() if behind else 0.0,
                connected_at=line.connected_at,
                envoy=line.envoy,
                failures=line.failures,
                held=held_back,
                kept=line.kept,
                not_ready=self._not_ready(key),
                token=line.admission.claims,
            )

    def _not_ready(self, key: Key) -> tuple[str, ...]:
        found = self.context.state.get(key)
        return tuple(service_probe.not_ready(found.spec)) if found else ()

    def shown(self, mesh: str = "") -> Iterator[Mapping[str, Json]]:
        """How the proxies are, as the API shows it."""
        short = self.context.kinds["Dataplane"].short
        for view in self.views(mesh):
            identifier = self._lines[view.key].proxy.kri(short)
            yield shown(view, str(identifier or ""), self.context.about.instance_id)

    def line(self, key: Key) -> ProxyLine | None:
        """The connection of a proxy, if it has one here."""
        return self._lines.get(key)

    # The loop.

    async def prepare(self) -> None:
        """Work out what those proxies share that were here before, while nobody waits for it.

        After a restart they come all at once. It ends after a while: who comes then is served in any case.
        """
        end = asyncio.get_running_loop().time() + PREPARED_SECONDS_MAX
        known = iter([each.key for each in self.context.state.listed("Dataplane")])
        places: set[compiled.Place] = set()
        while (batch := list(islice(known, BATCH))) and asyncio.get_running_loop().time() < end:
            await self._control.beside(partial(self._prepare, batch, places))

    def _prepare(self, proxies: Iterable[Key], places: set[compiled.Place], db: Db) -> None:
        """Beside the loop: ask what some proxies will ask for."""
        self._watched(db)
        for key in proxies:
            with contextlib.suppress(Exception):  # whoever needs it asks again, and is told
                place = compiled.likely_place(db, key)
                if place is not None and place not in places:
                    places.add(place)
                    compiled.shared(db, place)

    async def run(self) -> None:
        """Keep every connected proxy's offer as new as the store, until cancelled."""
        listener = self.context.background.forever("news for proxies", self._listen)
        try:
            while True:
                await self._wait()
                try:
                    if self._begins_anew:
                        await self._control.renew()
                        self._begins_anew = False
                    await self._round()
                except Unavailable as error:
                    log_waiting(_log, "proxies wait for the store", error)
                    await asyncio.sleep(1)
                    self._wake.set()
                except Exception as error:  # noqa: BLE001 - a mistake of ours in one round must not leave all stale for ever
                    _log.exception("proxies could not be served; all are looked at again")
                    self.n_rounds_failed += 1
                    self.context.background.failed("push round", error)
                    self._begins_anew = True
                    await asyncio.sleep(1)
                    self._wake.set()
        finally:
            listener.cancel()

    async def stop(self) -> None:
        """Proxies that go from now on are not deregistered: it is us who leave."""
        self._stopping = True
        for task in (*self._removals.values(), *self._notes):
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
            async with asyncio.timeout(left):  # wait_for would not always end when it is cancelled
                await self._wake.wait()
        self._wake.clear()

    async def _round(self) -> None:
        joining = [self._joining.pop(key) for key in list(self._joining)[:BATCH]]
        if self._joining:
            self._wake.set()
        leaving, self._leaving = self._leaving, set()
        suspects, self._suspects = self._suspects, set()
        loop = asyncio.get_running_loop()
        looks = loop.time() >= self._rest_until
        if not looks:  # whoever woke us may have meant a change, which is then looked at
            loop.call_later(max(self._rest_until - loop.time(), 0) + 0.001, self._wake.set)
        try:
            changed, revision = await self._control.beside(
                lambda db: self._compile(db, joining, leaving, looks=looks)
            )
        except Unavailable:  # they join and leave in another round
            back = {line.key: line for line in joining if self._lines.get(line.key) is line}
            self._joining = {**back, **self._joining}
            self._leaving |= leaving - self._lines.keys()
            self._suspects |= suspects
            raise
        if joining:
            self._joined_at = loop.time()
        if looks and changed:
            self._rest(len(changed))
        await self._accuse(suspects)
        for line in (*joining, *(self._lines[key] for key in changed if key in self._lines)):
            made = changed.get(line.key)
            if isinstance(made, Failure):
                line.unbuilt = made
            elif made is not None:
                line.compiled, line.uris = made
                line.unbuilt = None if line.compiled is not None else _unread(line)
        told = dict.fromkeys((*changed, *suspects, *self._certificates.changed()))
        await self._offering.hand_out(revision, told)
        if looks:  # not before: who is not behind counts as having this revision
            self._revision = revision

    def _rest(self, n_changed: int) -> None:
        """Do not look at changes for a while; then there is another round, which does."""
        loop = asyncio.get_running_loop()
        is_calm = loop.time() - self._joined_at > MANY_SECONDS
        each = REST_SECONDS_EACH if is_calm else REST_SECONDS_EACH_OF_MANY
        self._rest_until = loop.time() + min(n_changed * each, REST_SECONDS_MAX)
        loop.call_at(self._rest_until, self._wake.set)

    def _compile(
        self, db: Db, joining: Iterable[ProxyLine], leaving: Iterable[Key], *, looks: bool
    ) -> dict[Key, tuple[Snapshot | None, tuple[str, ...]] | Failure]:
        """Beside the loop: what changed for whom, and what those get who join; or why they get nothing."""
        before = self._watching
        watching = self._watched(db)
        again = tuple(self._lines.values()) if watching is not before else ()
        for key in leaving:
            watching.remove(key)
            db.remove(network.NODE_METADATA, key)
        touched: dict[Key, None] = {}
        for line in (*joining, *again):
            db.set(network.NODE_METADATA, line.key, line.node)
            touched[line.key] = None
        news = watching.changed() if looks else ()
        for key in touched:
            watching.add(key)
        found: dict[Key, tuple[Snapshot | None, tuple[str, ...]] | Failure] = {}
        for key in dict.fromkeys((*news, *touched)):
            try:
                found[key] = watching.of(key), self._identity(db, key)
            except Exception as error:  # noqa: BLE001 - a mistake of ours about one proxy must not leave the others stale
                _log.exception(
                    "the configuration of a proxy cannot be built; it gets nothing new", proxy=str(key)
                )
                self.context.background.failed("configuration of a proxy", error)
                found[key] = Failure("proxy", key.name, f"{type(error).__name__}: {error}", str(key))
        return found

    def _identity(self, db: Db, key: Key) -> tuple[str, ...]:
        """The names in a proxy's certificate: what an operator's Dataplane says, or else its token."""
        line = self._lines.get(key)
        named = line.identity_tags if line is not None else frozenset[str]()
        uris = spiffe.identity(db, key)
        return uris if named is None else spiffe.vouched(uris, named)

    def _watched(self, db: Db) -> Watching:
        """Who is watched in a database; nobody where it has just begun anew."""
        if self._watching is None or self._watching.db is not db:
            db.set(encoding.ENCODER, "envoy", self._encoder)
            self._watching = Watching(db)
        return self._watching

    async def _accuse(self, suspects: set[Key]) -> None:
        """Name the policies that had changed what proxies refused."""
        if suspects:
            blamed, _ = await self._control.beside(
                lambda db: {key: compiled.touching(db, key) for key in sorted(suspects)}
            )
            for key, policies in blamed.items():
                self.quarantine.blame(key, policies)

    def refused(self, line: ProxyLine) -> None:
        """A proxy refused something: from now on it is offered what it took last."""
        found = [
            held(piece, line.good.get(piece.id), rejection.text)
            for rejection in line.status.rejections
            for piece in line.refused(rejection)
        ]
        if self.quarantine.refuse(line.key, found) or line.is_trying:
            self._suspects.add(line.key)
            self.wake()

    def took(self, line: ProxyLine) -> None:
        """A proxy has taken all that was offered."""
        self.quarantine.took(line.key, line.good)

    def took_all(self, line: ProxyLine) -> None:
        """A proxy can be called now; who brought its own Dataplane is waited for until then."""
        if line.registered and not self._stopping and not self._registration.is_ready(line.proxy):
            task = self.context.background.once(f"readiness of {line.key.name}", self._note_ready(line))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def _note_ready(self, line: ProxyLine) -> None:
        while self._lines.get(line.key) is line:
            try:
                await self._registration.ready(line.proxy)
            except Unavailable as error:
                log_waiting(_log, "a proxy's readiness waits for the store", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def wake(self) -> None:
        """Look again at what there is to do."""
        self._wake.set()

    def secrets_acked(self, line: ProxyLine, versions: Mapping[str, str]) -> None:
        """A proxy has taken certificates; that may let the next step of a rotation happen."""
        moved = [self._certificates.acked(line.key, name, version) for name, version in versions.items()]
        self._poke(line.key.mesh)
        if any(moved):
            self._wake.set()


def _unread(line: ProxyLine) -> Failure:
    """Why a proxy gets nothing whose Dataplane or Mesh is none to the engine."""
    text = "its Dataplane or its Mesh is gone, or cannot be read as it is stored; write it again"
    return Failure("proxy", line.proxy.core_name, text, str(line.key))
