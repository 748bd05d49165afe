"""Registration: a proxy that brings its own Dataplane, or ZoneEgress, has it stored while it is connected.

Which control plane a proxy is connected to is noted on the object, so that only that one takes it away
again when the proxy has gone. A proxy that moved to another control plane stays, also while that is not noted
yet: their states say where it is.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from sys import intern
from typing import Final, NamedTuple

import msgspec
import structlog

from koguma.access.user import SYSTEM, User
from koguma.application import compare_and_swap, quota, transactions
from koguma.application.context import Context
from koguma.application.write_access import WriteAccess
from koguma.core.admission import FieldValidation, is_stored
from koguma.core.build.network import ready_mark
from koguma.fleet import bootstrap_request
from koguma.fleet.gate import PROXY, ProxyClaims, ProxyGate, is_registered
from koguma.fleet.shared_states import SharedStates
from koguma.identity import proxy_types
from koguma.model import documents, forms, labels
from koguma.model.errors import BadRequest, Invalid, Unavailable
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, cut
from koguma.store.contract import Operation, Put, Transaction
from koguma.store.unavailable import log_unavailable

CLAIM_SECONDS: Final = 1.0  # between two checks whether more proxies connect
# All are claimed by then: before another control plane deregisters the proxies that left it.
CLAIMED_SECONDS_MAX: Final = 8.0
CLAIMS_A_SECOND: Final = 1_500  # that the store can write, at least
CLAIMS_AT_ONCE: Final = 200
CLAIM_PAUSE_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 5.0
CONNECTED_TO: Final = "koguma.io/connected-to"  # an annotation: the instance that has the proxy's stream
_NAME_MAX: Final = 253  # characters of a name that stand in a message
_INTERNED_MAX: Final = 1024
_WRITER: Final = WriteAccess(User(SYSTEM), is_control_plane=True)

_log = structlog.get_logger("koguma.fleet")


def document(text: str, mesh: str, name: str, kind: str = proxy_types.SIDECAR.kind) -> Json:
    """The object that a proxy brought, checked to be its own."""
    if len(text) > bootstrap_request.DATAPLANE_BYTES_MAX:
        raise BadRequest(f"the proxy's {kind} {bootstrap_request.TOO_LARGE}")
    try:
        brought = msgspec.json.decode(text)
        documents.check_depth(brought)
    except (msgspec.DecodeError, RecursionError, documents.BadDocument) as error:
        raise BadRequest(f"the proxy's {kind} is no JSON: {error}") from error
    if not isinstance(brought, dict):
        raise BadRequest(f"the proxy's {kind} must be a JSON object")
    expected = {"mesh": mesh, "name": name} if mesh else {"name": name}
    for field, value in expected.items():
        if brought.get(field) != value:
            text = f'is "{cut(str(brought.get(field)), _NAME_MAX)}", but the proxy connected as "{value}"'
            raise Invalid([Violation(field, text, "identity")], f"the proxy's {kind} is another one")
    with_origin = {**(brought.get("labels") or {}), labels.REGISTERED_BY: PROXY}
    whole = {**brought, "type": kind, "labels": with_origin}
    return {**whole, "mesh": intern(mesh)} if mesh else bootstrap_request.without_mesh(whole)


class RegistrationPlan(NamedTuple):
    """An object to be stored over the stored one that was read, for the bearer of a token."""

    document: Json
    claims: ProxyClaims
    before: Resource | None
    resource: Resource
    operations: tuple[Operation, ...]
    is_operators: bool = False  # an operator wrote it, so it stays as it is


class Registration:
    """Stores and removes the objects of proxies that bring their own."""

    def __init__(self, context: Context, gate: ProxyGate, states: SharedStates) -> None:
        self._context = context
        self._gate = gate
        self._states = states
        self._claims: dict[Key, str] = {}  # the instance that each was connected to before; not written yet
        self._claiming: asyncio.Task[None] | None = None
        self._n_claims = 0  # so far

    def plan(self, document: Json, claims: ProxyClaims) -> RegistrationPlan:
        """What there is to write; Invalid where it may not be, Forbidden where the token is not for it."""
        draft = forms.read_plain(document, self._context.kinds[document["type"]])
        before = self._gate.stored(draft)
        if before is not None and is_stored(draft, before, self._context.control_plane):
            self._gate.check_stored(claims, before)
            return RegistrationPlan(
                document, claims, before, before, ()
            )  # most proxies that reconnect bring the same
        if before is not None and not is_registered(before):
            self._gate.check_stored(claims, before)
            self._gate.check_restated(draft, before)
            return RegistrationPlan(document, claims, before, before, (), is_operators=True)
        admitted, operations = transactions.put(self._context, _WRITER, draft, before, FieldValidation.STRICT)
        dataplane = msgspec.structs.replace(admitted.resource, spec=_shared(admitted.resource.spec))
        self._gate.check_brought(claims, dataplane, before)
        return RegistrationPlan(document, claims, before, dataplane, tuple(operations))

    async def register(self, plan: RegistrationPlan) -> Resource:
        """Store the object as it is now; nothing is written where nothing differs."""

        def plan_again() -> bool:
            nonlocal plan
            plan = self.plan(plan.document, plan.claims)
            return True

        return await compare_and_swap.retried(
            lambda: self._register(plan), f'{plan.resource.kind} "{plan.resource.core_name}"', plan_again
        )

    async def _register(self, plan: RegistrationPlan) -> Resource:
        here = self._context.about.instance_id
        if plan.is_operators:
            return plan.resource
        before, dataplane = plan.before, _connected(plan.resource, here)
        if before is not None and _equal(before, dataplane):
            return before
        if before is not None and _equal(_connected(before, here), dataplane):
            self._claim(before)
            return _connected(before, here)
        operations = tuple(
            msgspec.structs.replace(each, resource=dataplane) if isinstance(each, Put) else each
            for each in plan.operations
        )
        operations = (*operations, quota.requirement(self._context))
        await self._context.store.write(Transaction(operations, SYSTEM, "proxy connected"))
        return self._context.state.get(dataplane.key) or dataplane

    def _claim(self, resource: Resource) -> None:
        """Note that a known proxy has connected here; written in batches, since thousands may do so."""
        self._claims[resource.key] = resource.annotations.get(CONNECTED_TO, "")
        self._n_claims += 1
        if self._claiming is None or self._claiming.done():
            self._claiming = self._context.background.once("claims of proxies", self._write_claims())

    async def _until_few_connect(self) -> None:
        """Wait while many proxies connect, since serving them is more urgent; but not for long."""
        waited = 0.0
        while waited < CLAIMED_SECONDS_MAX - len(self._claims) / CLAIMS_A_SECOND:
            before = self._n_claims
            await asyncio.sleep(CLAIM_SECONDS)
            waited += CLAIM_SECONDS
            if self._n_claims == before:
                break

    async def _write_claims(self) -> None:
        await self._until_few_connect()
        while self._claims:
            await asyncio.sleep(CLAIM_PAUSE_SECONDS)
            claims = dict(islice(self._claims.items(), CLAIMS_AT_ONCE))
            puts = [put for key, seen in claims.items() if (put := self._claimed(key, seen)) is not None]
            try:
                transaction = Transaction(tuple(puts), SYSTEM, "proxies connected")
                if not await compare_and_swap.written_if_first(self._context.store, transaction):
                    continue  # one of them changed in between; look again
            except Unavailable as error:
                log_unavailable(_log, "proxies' claims wait for the store", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for key in claims:
                self._claims.pop(key, None)

    def _claimed(self, key: Key, seen: str) -> Put | None:
        """The object as connected to us, unless another control plane has claimed it meanwhile."""
        now = self._context.state.get(key)
        if now is None or now.annotations.get(CONNECTED_TO, "") != seen:
            return None
        return Put(_connected(now, self._context.about.instance_id), now.revision)

    def is_ready(self, resource: Resource) -> bool:
        """Whether nothing is to be written: it is ready, has gone, or a later run has replaced it."""
        now = self._context.state.get(resource.key)
        if now is None or now.labels.get(labels.INSTANCE) != resource.labels.get(labels.INSTANCE):
            return True
        return now.annotations.get(labels.READY) == ready_mark(now)

    def ready_put(self, resource: Resource) -> Put | None:
        """The write that a proxy can be called now; None where nothing is to be written."""
        now = self._context.state.get(resource.key)
        if now is None or self.is_ready(resource):
            return None
        annotations = _annotated(now, labels.READY, ready_mark(now))
        return Put(msgspec.structs.replace(now, annotations=annotations), now.revision)

    async def ready(self, resource: Resource) -> None:
        """Store that a proxy has acknowledged its configuration, so that others may call it."""
        for _ in range(compare_and_swap.ATTEMPTS):
            put = self.ready_put(resource)
            if put is None:
                return
            transaction = Transaction((put,), SYSTEM, "proxy ready")
            if await compare_and_swap.written_if_first(self._context.store, transaction):
                return

    def left(self, resource: Resource) -> Resource:
        """A proxy has gone: it is claimed no more. Gives its object as the store has it."""
        seen = self._claims.pop(resource.key, None)
        return resource if seen is None else _connected(resource, seen)

    async def remove_later(self, resource: Resource, delay_seconds: float) -> None:
        """Remove it after a while, unless it has connected again, here or elsewhere."""
        await asyncio.sleep(delay_seconds)
        while True:
            try:
                if self._states.is_known:
                    return await self.remove(resource)
            except Unavailable as error:
                log_unavailable(
                    _log, "a proxy's removal waits for the store", error, proxy=resource.core_name
                )
            await asyncio.sleep(RETRY_SECONDS)

    def registered(self) -> list[Resource]:
        """All objects that proxies of this zone brought; those of other zones come and go by sync."""
        zone = self._context.control_plane.zone
        stored = (each for kind in proxy_types.BY_KIND for each in self._context.state.listed(kind))
        return [each for each in stored if each.zone == zone and is_registered(each)]

    async def remove(self, resource: Resource) -> None:
        """Remove what a proxy registered, unless it has connected to another control plane since."""
        now = self._context.state.get(resource.key)
        if now is None or not is_registered(now) or self._states.is_elsewhere(now.key):
            return
        if now.annotations.get(CONNECTED_TO) != resource.annotations.get(CONNECTED_TO):
            return
        deletion = tuple(transactions.delete(self._context, now, now.revision))
        transaction = Transaction(deletion, SYSTEM, "proxy disconnected")
        if await compare_and_swap.written_if_first(self._context.store, transaction):
            _log.info("proxy deregistered", proxy=now.core_name, mesh=now.mesh)


def _connected(resource: Resource, instance: str) -> Resource:
    return msgspec.structs.replace(resource, annotations=_annotated(resource, CONNECTED_TO, instance))


def _annotated(resource: Resource, name: str, value: str) -> Mapping[str, str]:
    return _annotations(tuple({**resource.annotations, name: value}.items()))


@lru_cache(maxsize=64)
def _annotations(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """One mapping for equal annotations: all that proxies register here begin with the same ones."""
    return dict(pairs)


def _equal(before: Resource, after: Resource) -> bool:
    return (before.spec, before.labels, before.annotations) == (
        after.spec,
        after.labels,
        after.annotations,
    )


def _shared(spec: Json) -> Json:
    """A Dataplane's spec whose parts that many have in common, such as tags, are one object in memory."""
    networking = spec.get("networking")
    if not isinstance(networking, dict):
        return spec
    return {**spec, "networking": {name: _shared_part(part) for name, part in networking.items()}}


def _shared_part(part: Json) -> Json:
    if isinstance(part, list):  # inbounds, each of which has a port or an address of its own
        return [
            {name: _interned(value) for name, value in each.items()} if isinstance(each, dict) else each
            for each in part
        ]
    return _interned(part)


def _interned(value: Json) -> Json:
    """One object for equal values; what is stored is never changed in place."""
    if isinstance(value, str):
        return intern(value)
    return _decoded(msgspec.json.encode(value)) if isinstance(value, dict) else value


@lru_cache(maxsize=_INTERNED_MAX)
def _decoded(text: bytes) -> Json:
    return msgspec.json.decode(text)
