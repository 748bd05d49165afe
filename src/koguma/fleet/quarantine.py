"""Quarantine: a resource that an Envoy rejected is held back for that proxy, which keeps the last good one.

A rejected resource is known by its version, the hash of its content. As long as the compile gives that very
version, the proxy is offered the last one that it acknowledged, or goes without where it never acknowledged
any, also after a restart of either side: held resources are stored. Whatever changes the content, such as a
corrected policy, releases it. Some reasons pass by themselves, such as a port that another program had: then
the rejected version is offered again now and then (`retries`), and an ACK releases it too.
"""

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import transactions
from koguma.application.context import Context
from koguma.envoy.snapshot import SECRET, Bundle, Id, Snapshot, XdsResource, is_of_inbound
from koguma.model.errors import AlreadyExists, Conflict, NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.contract import Delete, Operation, Put, Transaction
from koguma.store.unavailable import log_unavailable

PREFIX: Final = "koguma-quarantine-"
RETRY_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 10.0  # after which a proxy that is gone is no longer named
_PAUSE_SECONDS: Final = 0.1  # what is rejected together is stored together
# Envoy's error texts where another program or the machine is the cause, and not the configuration.
_PASSING: Final = ("Address already in use", "Cannot assign requested address")

_log = structlog.get_logger("koguma.quarantine")


class HeldResource(msgspec.Struct, frozen=True):
    """A resource that a proxy rejected, and the version that it keeps instead."""

    type: str
    name: str
    version: str  # the one that was rejected
    text: str  # Envoy's error text
    policies: tuple[str, ...] = ()  # KRIs of those that changed it
    good_version: str = ""  # empty where it never acknowledged any
    good: str = ""  # its bytes, base64
    needs: tuple[Id, ...] = ()
    revision: int = 0  # of the store, of the offer that it was in; 0 where an earlier release has stored it
    had: int = 0  # the revision that the proxy had all of before

    @property
    def id(self) -> Id:
        """Type and name."""
        return self.type, self.name

    @property
    def is_passing(self) -> bool:
        """Whether the reason may pass without a change of any object."""
        return any(text in self.text for text in _PASSING)

    @property
    def last_acked(self) -> XdsResource | None:
        """What the proxy acknowledged last."""
        if not self.good_version:
            return None
        return XdsResource(self.type, self.name, self.good_version, base64.b64decode(self.good), self.needs)


class QuarantineRecord(msgspec.Struct, frozen=True):
    """All that one proxy rejected, as it is stored."""

    mesh: str
    zone: str
    namespace: str
    name: str
    held: tuple[HeldResource, ...]
    kind: str = "Dataplane"

    @property
    def key(self) -> Key:
        """The proxy."""
        return Key(self.kind, self.mesh, self.zone, self.namespace, self.name)


def held(
    rejected: XdsResource,
    good: XdsResource | None,
    text: str,
    policies: Iterable[str] = (),
    *,
    revision: int = 0,
    had: int = 0,
) -> HeldResource:
    """What to remember of a NACK."""
    base = HeldResource(
        *rejected.id, rejected.version, text, tuple(sorted(policies)), revision=revision, had=had
    )
    if good is None or good.version == rejected.version:
        return base
    body = base64.b64encode(good.body).decode()
    return msgspec.structs.replace(base, good_version=good.version, good=body, needs=good.needs)


def applied(snapshot: Snapshot, holding: Mapping[Id, HeldResource]) -> Snapshot:
    """A snapshot with the last acknowledged version of each held resource; the other bundles are shared.

    One that was never acknowledged is left out, so that the proxy can acknowledge all else. What other
    resources wait for stays, and so does what lets the proxy be called: without it, it has not got the rest.
    """
    never = [id_ for id_, resource in holding.items() if resource.last_acked is None]
    needed = {need for each in snapshot for need in each.needs} if never else ()
    left_out = frozenset(id_ for id_ in never if id_ not in needed and not is_of_inbound(id_))
    bundles = tuple(_applied(bundle, holding, left_out) for bundle in snapshot.bundles)
    return msgspec.structs.replace(snapshot, bundles=bundles)


def _applied(bundle: Bundle, holding: Mapping[Id, HeldResource], left_out: AbstractSet[Id]) -> Bundle:
    replaced = {
        id_: good
        for id_, resource in holding.items()
        if id_ in bundle.resources and (good := resource.last_acked) is not None
    }
    if not replaced and left_out.isdisjoint(bundle.resources):
        return bundle
    kept = {id_: each for id_, each in bundle.resources.items() if id_ not in left_out}
    return Bundle({**kept, **replaced}, bundle.failures)


def released(snapshot: Snapshot, holding: Mapping[Id, HeldResource]) -> set[Id]:
    """The resources whose content is no longer what was rejected."""
    return {
        id_
        for id_, resource in holding.items()
        if (current := snapshot.get(id_)) is None or current.version != resource.version
    }


class Quarantine:
    """What the proxies of this control plane rejected; stored whenever it changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._holding: dict[Key, dict[Id, HeldResource]] = {}
        self._dirty: dict[Key, None] = {}
        self._storing: dict[Key, None] = {}
        self._unreadable: set[str] = set()  # names of Configs
        self._reported: set[str] = set()  # policies whose status says that proxies reject them
        self._wake = asyncio.Event()
        self.on_change: Callable[[Key], None] = lambda _proxy: None  # what is held for it is another

    def load(self) -> None:
        """Read what is stored."""
        self._holding = {record.key: _by_id(record) for record in self._records()}
        held = (resource for holding in self._holding.values() for resource in holding.values())
        self._reported = {policy for resource in held for policy in resource.policies}

    def _records(self) -> Iterator[QuarantineRecord]:
        for config in self._context.state.listed("Config"):
            if config.name.startswith(PREFIX) and (record := self._read(config)) is not None:
                yield record

    def _read(self, config: Resource) -> QuarantineRecord | None:
        try:
            return msgspec.json.decode(str(config.spec.get("config", "")), type=QuarantineRecord)
        except msgspec.DecodeError:
            if config.name not in self._unreadable:
                self._unreadable.add(config.name)
                _log.warning("what was held cannot be read, and is passed over", name=config.name)
            return None

    def join(self, proxy: Key) -> None:
        """A proxy has connected: what another control plane held back for it meanwhile counts here too."""
        if proxy in self._dirty or proxy in self._storing:
            return
        config = self._context.state.named("Config", "", _config_name(proxy))
        record = self._read(config) if config is not None else None
        if record is not None:
            self._holding[proxy] = _by_id(record)
        else:
            self._holding.pop(proxy, None)

    def of(self, proxy: Key) -> Mapping[Id, HeldResource]:
        """What is held for a proxy."""
        return self._holding.get(proxy, {})

    def hold(self, proxy: Key, rejected: Iterable[HeldResource]) -> bool:
        """Hold what a proxy rejected; whether any of it is new. Not secrets, since they would be stored."""
        holding = self._holding.setdefault(proxy, {})
        new = [each for each in rejected if each.type != SECRET and _is_new(holding.get(each.id), each)]
        for resource in new:
            holding[resource.id] = resource
            _log.warning(
                "a proxy refused a part of its configuration; it gets what it took last"
                if resource.good_version
                else "a proxy refused a part of its configuration; it goes without it",
                proxy=proxy.name,
                mesh=proxy.mesh,
                type=resource.type,
                name=resource.name,
                policies=resource.policies,
                reason=resource.text,
            )
        if not holding:
            del self._holding[proxy]
        if new:
            self._mark_dirty(proxy)
        return bool(new)

    def blame(self, proxy: Key, policies: Mapping[Id, Iterable[str]]) -> None:
        """Name the policies (by KRI) that changed what is held."""
        holding = self._holding.get(proxy, {})
        for id_, resource in holding.items():
            names = tuple(sorted(policies.get(id_, ())))
            if names and names != resource.policies:
                holding[id_] = msgspec.structs.replace(resource, policies=names)
                self._mark_dirty(proxy)

    def release_acked(self, proxy: Key, snapshot: Snapshot) -> None:
        """A proxy has acknowledged all of this; what it rejected of it before is no longer held."""
        holding = self._holding.get(proxy)
        if holding:
            acked = {
                id_
                for id_, resource in holding.items()
                if (current := snapshot.get(id_)) and current.version == resource.version
            }
            self._release(proxy, acked, "what was refused before was taken now")

    def has_passing(self, proxy: Key) -> bool:
        """Whether something is held for a proxy for a reason that may pass by itself."""
        holding = self._holding.get(proxy)
        return holding is not None and any(resource.is_passing for resource in holding.values())

    def without_lasting(self, proxy: Key, snapshot: Snapshot) -> Snapshot:
        """The offer of a retry: only what was rejected for a lasting reason is held back."""
        lasting = {id_: resource for id_, resource in self.of(proxy).items() if not resource.is_passing}
        return applied(snapshot, lasting) if lasting else snapshot

    def without_rejected(self, proxy: Key, snapshot: Snapshot) -> Snapshot:
        """The offer for a proxy: what was compiled, with what it rejected held back."""
        holding = self._holding.get(proxy)
        return applied(snapshot, holding) if holding else snapshot

    def release_changed(self, proxy: Key, snapshot: Snapshot) -> int | None:
        """Hold back no longer what has changed since; the revision that the proxy had before all of that."""
        holding = self._holding.get(proxy, {})
        changed = [holding[id_] for id_ in released(snapshot, holding)]
        if changed:
            ids = (resource.id for resource in changed)
            self._release(proxy, ids, "a refused part has changed and is sent again")
        return min((resource.had for resource in changed if resource.revision), default=None)

    def _release(self, proxy: Key, ids: Iterable[Id], event: str) -> None:
        holding = self._holding[proxy]
        for id_ in ids:
            _log.info(event, proxy=proxy.name, name=holding.pop(id_).name)
            self._mark_dirty(proxy)
        if not holding:
            del self._holding[proxy]

    def _mark_dirty(self, proxy: Key) -> None:
        self._dirty[proxy] = None
        self._wake.set()
        self.on_change(proxy)

    async def run(self) -> None:
        """Store what changes, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._wake.wait()
                    await asyncio.sleep(_PAUSE_SECONDS)
            self._wake.clear()
            self._storing, self._dirty = self._dirty, {}
            for proxy in list(self._storing):
                await self._store_or_retry(proxy)
                self._storing.pop(proxy)
            if self._reported or self._holding:
                await self._store_or_retry(None)

    async def _store_or_retry(self, proxy: Key | None) -> None:
        """Store what is held for a proxy; without one, only the conditions, which are looked at again."""
        try:
            if proxy is not None:
                await self._store(proxy)
            await self._report()
        except (AlreadyExists, Conflict, NotFound):
            self._look_again(proxy)  # somebody else wrote it in between
        except Unavailable as error:
            log_unavailable(_log, "quarantine waits for the store", error)
            await asyncio.sleep(RETRY_SECONDS)
            self._look_again(proxy)

    def _look_again(self, proxy: Key | None) -> None:
        if proxy is not None:
            self._mark_dirty(proxy)

    async def _store(self, proxy: Key) -> None:
        """Write what is held for a proxy; of two writers the later wins, since its Envoy answered last."""
        before = self._context.state.named("Config", "", _config_name(proxy))
        holding = self._holding.get(proxy)
        operation: Operation
        if holding:
            record = QuarantineRecord(
                *proxy[1:], tuple(holding[id_] for id_ in sorted(holding)), kind=proxy.kind
            )
            document = {
                "type": "Config",
                "name": _config_name(proxy),
                "config": msgspec.json.encode(record).decode(),
            }
            operation = Put(
                transactions.control_plane_object(self._context, document), before.revision if before else 0
            )
        elif before is not None:
            operation = Delete(before.key, before.revision)
        else:
            return
        await self._context.store.write(Transaction((operation,), SYSTEM, "quarantine"))

    async def _report(self) -> None:
        """Write the condition of each policy that proxies reject, or no longer reject."""
        blamed = self._blamed()
        for policy in sorted(self._reported | blamed.keys()):
            conditions = [_condition(blamed[policy])] if policy in blamed else []
            stored = self._context.state.get(self._context.parse_kri(policy)[1])
            if stored is not None and (stored.status or {}).get("conditions", []) != conditions:
                status = {"conditions": conditions} if conditions else None
                put = Put(msgspec.structs.replace(stored, status=status), stored.revision)
                await self._context.store.write(Transaction((put,), SYSTEM, "status"))
        self._reported = set(blamed)

    def _blamed(self) -> dict[str, list[tuple[Key, HeldResource]]]:
        """What is held because of each policy, by its KRI, for all proxies that are still there.

        It is read as it is stored, also by other control planes, so that all of them say the same.
        """
        by_policy: dict[str, list[tuple[Key, HeldResource]]] = {}
        records = [each for each in self._records() if self._context.state.get(each.key) is not None]
        for record in sorted(records, key=lambda each: each.key):
            for resource in record.held:
                for policy in resource.policies:
                    by_policy.setdefault(policy, []).append((record.key, resource))
        return by_policy


def _by_id(record: QuarantineRecord) -> dict[Id, HeldResource]:
    return {resource.id: resource for resource in record.held}


def _is_new(before: HeldResource | None, now: HeldResource) -> bool:
    return before is None or before.version != now.version


def _condition(rejections: list[tuple[Key, HeldResource]]) -> Json:
    proxies = sorted({str(proxy) for proxy, _ in rejections})
    more = f" and {len(proxies) - 3} more" if len(proxies) > 3 else ""  # noqa: PLR2004 - enough to know whom to ask
    _, first = rejections[0]
    message = f"refused by {', '.join(proxies[:3])}{more}, which {_instead(rejections)}: {first.text}"
    return {"type": "Accepted", "status": "False", "reason": "Refused", "message": message}


def _instead(rejections: list[tuple[Key, HeldResource]]) -> str:
    """What proxies have in place of what they rejected."""
    had = {bool(resource.good_version) for _, resource in rejections}
    if had == {True}:
        return "keep what they had"
    return "go without it" if had == {False} else "keep what they had of it, or go without it"


def _config_name(proxy: Key) -> str:
    named = proxy[1:] if proxy.kind == "Dataplane" else proxy  # names of zone proxies may be equal
    return PREFIX + hashlib.blake2b("/".join(named).encode(), digest_size=12).hexdigest()
