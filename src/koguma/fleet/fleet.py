"""Fleet: the connected proxies. Lets them in, and has each offered what it is to have.

Who is connected is in the `roster`; when something is compiled and pushed is decided in `rounds`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from koguma.application.context import Context, mesh_key
from koguma.application.live_engine import LiveEngine
from koguma.envoy.encode import Encoder
from koguma.fleet.certificates import Certificates
from koguma.fleet.compiler import SnapshotCompiler
from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.fleet.gate import ProxyGate, is_registered
from koguma.fleet.local_states import LocalStates
from koguma.fleet.node_metadata import run_of
from koguma.fleet.offers import Offers
from koguma.fleet.quarantine import Quarantine, held
from koguma.fleet.ready_writer import ReadyWriter
from koguma.fleet.refused_proxies import RefusedProxies
from koguma.fleet.registration import Registration, document
from koguma.fleet.roster import Roster
from koguma.fleet.rounds import PushRounds
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.sweep import Sweep
from koguma.identity import proxy_types
from koguma.identity.proxy_types import ProxyType
from koguma.model.errors import BadRequest, Conflict, KogumaError, NotFound
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation, cut
from koguma.xds.contract import ConnectRequest

DEREGISTRATION_SECONDS: Final = 10.0
_WORD_MAX: Final = 100

_log = structlog.get_logger("koguma.fleet")


class Fleet:
    """Lets proxies in over xDS, and takes note of what they acknowledge and reject."""

    def __init__(
        self,
        context: Context,
        engine: LiveEngine,
        gate: ProxyGate,
        certificates: Certificates,
        encoder: Encoder,
        states: SharedStates,
        on_change: Callable[[str], None] = lambda _mesh: None,
    ) -> None:
        self.context = context
        self.clock = clock = states.clock
        self.gate = gate
        self.quarantine = Quarantine(context)
        self.quarantine.load()
        self.refused_proxies = RefusedProxies(clock)
        self.roster = Roster()
        self._certificates = certificates
        self._on_change = on_change  # of who is connected or has a certificate, in a mesh
        self._registration = Registration(context, gate, states)
        self._offers = Offers(self.roster, self.quarantine, certificates, encoder)
        self.rounds = PushRounds(
            context,
            engine,
            SnapshotCompiler(encoder),
            self.roster,
            self._offers,
            certificates,
            clock,
        )
        self._local = LocalStates(context, self.roster, self.quarantine, certificates, clock)
        self.quarantine.on_change = self._local.note
        self.states = states
        states.subscribe(self._others_changed)
        states.attach(self._local, lambda: self.roster.connected, lambda: self.revision)
        self.sweep = Sweep(self._registration, states)
        self._deregistrations: dict[Key, asyncio.Task[None]] = {}
        self._ready_writer = ReadyWriter(context, self._registration, self.roster.is_current)
        self._stopping = False

    # Proxies come and go.

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is valid for some proxy."""
        self.gate.authenticate(token)

    async def connect(self, request: ConnectRequest) -> ConnectedProxy:
        """Let a proxy in, with a token that is for it, and an object that is stored or that it brings."""
        try:
            proxy = await self._admitted(request)
        except KogumaError as error:
            self.refused_proxies.refuse("xds", request.mesh, request.name, request.peer, error)
            raise
        self.refused_proxies.admit(request.mesh, request.name)
        self._add(proxy)
        return proxy

    async def _admitted(self, request: ConnectRequest) -> ConnectedProxy:
        proxy_type = self._proxy_type(request)
        token = self.gate.presented_by(proxy_type, request.mesh, request.token)
        claims = token.claims
        brought = request.metadata.get("dataplane.resource")
        if brought:
            self.gate.check_name(claims, proxy_type, request.mesh, request.name)
            object_ = document(str(brought), request.mesh, request.name, proxy_type.kind)
            plan = self._registration.plan(object_, claims)
            self._check_run(request, plan.resource)
            proxy = await self._registration.register(plan)
        else:
            proxy = self._stored(request, proxy_type)
            self.gate.check_stored(claims, proxy)
            self._check_run(request, proxy)
        return ConnectedProxy(
            self,
            request,
            proxy,
            self.gate.admission(token, proxy),
            registered=bool(brought) and is_registered(proxy),
            identity_tags=self.gate.identity_tags(claims, proxy),
        )

    def _proxy_type(self, request: ConnectRequest) -> ProxyType:
        """The type of a proxy; the node of one that is not authenticated is not read, but it has no mesh."""
        if request.mesh:
            if self.context.state.get(mesh_key(request.mesh)) is None:
                raise NotFound(f'there is no mesh "{request.mesh}"')
            return proxy_types.SIDECAR
        proxy_type = proxy_types.named(request.proxy_type or proxy_types.EGRESS.word)
        if proxy_type is None or not proxy_type.is_of_zone:
            raise BadRequest(f'proxies of type "{cut(request.proxy_type, _WORD_MAX)}" are not served')
        return proxy_type

    def _stored(self, request: ConnectRequest, proxy_type: ProxyType) -> Resource:
        proxy = self.context.state.named(proxy_type.kind, request.mesh, request.name)
        # The ingresses of other zones are stored here too; their proxies connect there.
        if proxy is None or (proxy_type.is_of_zone and proxy.zone != self.context.control_plane.zone):
            where = f' in mesh "{request.mesh}"' if request.mesh else ""
            text = f'there is no {proxy_type.kind} "{request.name}"{where}'
            raise NotFound(text, violations=[Violation("name", text, "missing")])
        return proxy

    def _check_run(self, request: ConnectRequest, proxy: Resource) -> None:
        if self.roster.was_replaced(proxy.key, run_of(request, proxy.labels)):
            text = f'a later run of proxy "{request.name}" has taken the place of this one'
            raise Conflict(f"{text}; stop one of them, or give it a name of its own")

    def _add(self, proxy: ConnectedProxy) -> None:
        deregistration = self._deregistrations.pop(proxy.key, None)
        if deregistration is not None:
            deregistration.cancel()
        self.roster.add(proxy)
        self.quarantine.join(proxy.key)
        self.rounds.join(proxy)
        self._local.note_connected(proxy.key)
        self._on_change(proxy.key.mesh)

    async def disconnect(self, proxy: ConnectedProxy) -> None:
        """A stream has ended; what the proxy registered is removed after a while."""
        if not self.roster.is_current(proxy):
            return  # another stream of the same proxy has replaced it
        key = proxy.key
        self._local.note_disconnected(proxy)
        self.roster.remove(proxy)
        self._offers.forget(key)
        self._certificates.forget(key)
        self.rounds.leave(key)
        self._on_change(key.mesh)
        if proxy.registered and not self._stopping:
            brought = self._registration.left(proxy.proxy)
            removal = self._registration.remove_later(brought, DEREGISTRATION_SECONDS)
            task = self.context.background.once(f"deregistration of {key.name}", removal)
            self._deregistrations[key] = task
            task.add_done_callback(lambda _done: self._deregistrations.pop(key, None))

    async def stop(self) -> None:
        """Proxies that disconnect from now on are not deregistered: it is this control plane that leaves."""
        self._stopping = True
        self._ready_writer.stop()
        for task in self._deregistrations.values():
            task.cancel()

    # What they acknowledge and reject.

    @property
    def revision(self) -> int:
        """Of the store: every proxy that is not behind has what was written up to here."""
        return self.rounds.revision

    def changed(self, proxy: ConnectedProxy) -> None:
        """The state of a proxy has changed."""
        self._local.note(proxy.key)

    def rejected(self, proxy: ConnectedProxy) -> None:
        """A proxy sent a NACK: from now on it is offered what it acknowledged last."""
        rejected = [
            held(
                resource,
                proxy.last_acked(resource.id),
                rejection.text,
                revision=rejection.revision,
                had=proxy.revision,
            )
            for rejection in proxy.status.rejections
            for resource in proxy.rejected(rejection)
        ]
        if self.quarantine.hold(proxy.key, rejected) or proxy.is_retrying:
            self.rounds.rejected(proxy.key)

    def acked(self, proxy: ConnectedProxy) -> None:
        """A proxy has acknowledged the newest offer completely."""
        self.rounds.synced(proxy.key)
        self.quarantine.release_acked(proxy.key, proxy.acked_snapshot)

    def ready(self, proxy: ConnectedProxy) -> None:
        """A proxy can be called now; one that brought its own object gets no calls until then."""
        if proxy.registered and not self._stopping:
            self._ready_writer.store(proxy)

    def secrets_acked(self, proxy: ConnectedProxy, versions: Mapping[str, str]) -> None:
        """A proxy has acknowledged certificates, which may let the next step of a rotation happen."""
        changes = [self._certificates.acked(proxy.key, name, version) for name, version in versions.items()]
        self._on_change(proxy.key.mesh)
        if any(changes):
            self.rounds.wake()

    def _others_changed(self, _mesh: str) -> None:
        """Proxies of other control planes have changed, which may let the next step of a rotation happen."""
        if self._certificates.others_changed():
            self.rounds.wake()

    # How they are.

    def n_by_state(self) -> Mapping[str, int]:
        """How many proxies are in each state: as their states show them, without the cost of making these."""
        counts: Counter[str] = Counter()
        for key, proxy in self.roster.items():
            state = "behind" if proxy.status.state == "synced" and proxy.behind_since else proxy.status.state
            counts["nack" if self.quarantine.of(key) else state] += 1
        return counts
