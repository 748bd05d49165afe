"""Quarantine: what an Envoy refused is held back for that proxy, which gets what it took last instead.

A refused resource is known by its version, the hash of its content. As long as the compile gives that very
version, the proxy is offered the last one that it took, also after a restart of either side: held resources
are stored. Whatever changes the content, such as a corrected policy, releases it. Some reasons pass by
themselves, such as a port that somebody else had: then the refused version is tried again now and then
(`trials`), and taking it releases it too.
"""

import asyncio
import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import transactions
from koguma.application.context import Context
from koguma.envoy.snapshot import SECRET, Bundle, Id, Snapshot, XdsResource
from koguma.model.errors import AlreadyExists, Conflict, NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.contract import Delete, Operation, Put, Transaction
from koguma.store.waiting import log_waiting

PREFIX: Final = "koguma-quarantine-"
RETRY_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.1  # what is refused together is stored together
# Envoy's words where another program, or the machine, is in the way and not what it was told.
_PASSING: Final = ("Address already in use", "Cannot assign requested address")

_log = structlog.get_logger("koguma.quarantine")


class Held(msgspec.Struct, frozen=True):
    """A resource that a proxy refused, and what it has instead."""

    type: str
    name: str
    version: str  # the one that was refused
    text: str  # Envoy's words
    policies: tuple[str, ...] = ()  # KRIs of those that had changed it last
    good_version: str = ""  # empty where it never took any
    good: str = ""  # its bytes, base64
    needs: tuple[Id, ...] = ()

    @property
    def id(self) -> Id:
        """Type and name."""
        return self.type, self.name

    @property
    def is_passing(self) -> bool:
        """Whether the reason may pass without a change of anything that we know of."""
        return any(words in self.text for words in _PASSING)

    @property
    def piece(self) -> XdsResource | None:
        """What the proxy took last."""
        if not self.good_version:
            return None
        return XdsResource(self.type, self.name, self.good_version, base64.b64decode(self.good), self.needs)


class Record(msgspec.Struct, frozen=True):
    """All that one proxy refused, as it is stored."""

    mesh: str
    zone: str
    namespace: str
    name: str
    held: tuple[Held, ...]

    @property
    def key(self) -> Key:
        """The proxy."""
        return Key("Dataplane", self.mesh, self.zone, self.namespace, self.name)


def held(refused: XdsResource, good: XdsResource | None, text: str, policies: Iterable[str] = ()) -> Held:
    """What to remember of a refusal."""
    base = Held(*refused.id, refused.version, text, tuple(sorted(policies)))
    if good is None or good.version == refused.version:
        return base
    body = base64.b64encode(good.body).decode()
    return msgspec.structs.replace(base, good_version=good.version, good=body, needs=good.needs)


def applied(snapshot: Snapshot, holding: Mapping[Id, Held]) -> Snapshot:
    """A snapshot in which what is held is what the proxy took last; the rest is as it is, and shared."""
    bundles = tuple(_applied(each, holding) for each in snapshot.bundles)
    return msgspec.structs.replace(snapshot, bundles=bundles)


def _applied(bundle: Bundle, holding: Mapping[Id, Held]) -> Bundle:
    swapped = {
        id_: good
        for id_, each in holding.items()
        if id_ in bundle.resources and (good := each.piece) is not None
    }
    return Bundle({**bundle.resources, **swapped}, bundle.failures) if swapped else bundle


def released(snapshot: Snapshot, holding: Mapping[Id, Held]) -> set[Id]:
    """What is no longer what was refused."""
    current = {id_: snapshot.get(id_) for id_ in holding}
    return {
        id_ for id_, each in holding.items() if (now := current[id_]) is None or now.version != each.version
    }


class Quarantine:
    """What the proxies of this control plane refused; stored whenever it changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._holding: dict[Key, dict[Id, Held]] = {}
        self._dirty: dict[Key, None] = {}
        self._reported: set[str] = set()  # policies whose status says that they are refused
        self._wake = asyncio.Event()

    def load(self) -> None:
        """Take what is stored."""
        for config in self._context.state.listed("Config"):
            if config.name.startswith(PREFIX):
                record = _read(config)
                if record is not None:
                    self._holding[record.key] = {each.id: each for each in record.held}
        self._reported = set(self._blamed())

    def of(self, proxy: Key) -> Mapping[Id, Held]:
        """What is held for a proxy."""
        return self._holding.get(proxy, {})

    def refuse(self, proxy: Key, refused: Iterable[Held]) -> bool:
        """Hold what a proxy refused; says whether that is news. Keys are never held: they would be stored."""
        mine = self._holding.setdefault(proxy, {})
        news = [each for each in refused if each.type != SECRET and _is_news(mine.get(each.id), each)]
        for each in news:
            mine[each.id] = each
            _log.warning(
                "a proxy refused a part of its configuration; it gets what it took last"
                if each.good_version
                else "a proxy refused a part of its configuration; it goes without it",
                proxy=proxy.name,
                mesh=proxy.mesh,
                type=each.type,
                name=each.name,
                policies=each.policies,
                reason=each.text,
            )
        if not mine:
            del self._holding[proxy]
        if news:
            self._note(proxy)
        return bool(news)

    def blame(self, proxy: Key, policies: Mapping[Id, Iterable[str]]) -> None:
        """Name the policies (by KRI) that had changed what is held."""
        mine = self._holding.get(proxy, {})
        for id_, each in mine.items():
            named = tuple(sorted(policies.get(id_, ())))
            if named and named != each.policies:
                mine[id_] = msgspec.structs.replace(each, policies=named)
                self._note(proxy)

    def took(self, proxy: Key, snapshot: Snapshot) -> None:
        """A proxy has taken all of this; what it refused of it before is no longer held."""
        mine = self._holding.get(proxy)
        if mine:
            now = {id_: snapshot.get(id_) for id_ in mine}
            taken = {id_ for id_, each in mine.items() if (has := now[id_]) and has.version == each.version}
            self._release(proxy, taken, "what was refused before was taken now")

    def is_passing(self, proxy: Key) -> bool:
        """Whether something is held for a proxy for a reason that may pass by itself."""
        mine = self._holding.get(proxy)
        return mine is not None and any(each.is_passing for each in mine.values())

    def trial(self, proxy: Key, snapshot: Snapshot) -> Snapshot:
        """What a proxy is offered for a trial: only what it refused for a lasting reason is held back."""
        lasting = {id_: each for id_, each in self.of(proxy).items() if not each.is_passing}
        return applied(snapshot, lasting) if lasting else snapshot

    def taken(self, proxy: Key, snapshot: Snapshot) -> Snapshot:
        """What a proxy is to be offered: what was compiled, with what it refused held back."""
        mine = self._holding.get(proxy)
        if not mine:
            return snapshot
        self._release(proxy, released(snapshot, mine), "a refused part has changed and is sent again")
        return applied(snapshot, mine) if mine else snapshot

    def _release(self, proxy: Key, ids: Iterable[Id], words: str) -> None:
        mine = self._holding[proxy]
        for id_ in ids:
            _log.info(words, proxy=proxy.name, name=mine.pop(id_).name)
            self._note(proxy)
        if not mine:
            del self._holding[proxy]

    def _note(self, proxy: Key) -> None:
        self._dirty[proxy] = None
        self._wake.set()

    async def run(self) -> None:
        """Store what changes, until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_PAUSE_SECONDS)
            self._wake.clear()
            dirty, self._dirty = self._dirty, {}
            for proxy in dirty:
                await self._store_or_retry(proxy)

    async def _store_or_retry(self, proxy: Key) -> None:
        try:
            await self._store(proxy)
            await self._report()
        except (AlreadyExists, Conflict, NotFound):
            self._note(proxy)  # somebody else wrote it in between; look again
        except Unavailable as error:
            log_waiting(_log, "quarantine waits for the store", error)
            await asyncio.sleep(RETRY_SECONDS)
            self._note(proxy)

    async def _store(self, proxy: Key) -> None:
        """Write what is held for a proxy; of two writers the later one counts, since it asks Envoy last."""
        before = self._context.state.named("Config", "", _config_name(proxy))
        mine = self._holding.get(proxy)
        operation: Operation
        if mine:
            record = Record(*proxy[1:], tuple(mine[id_] for id_ in sorted(mine)))
            document = {
                "type": "Config",
                "name": _config_name(proxy),
                "config": msgspec.json.encode(record).decode(),
            }
            operation = Put(transactions.made_here(self._context, document), before.revision if before else 0)
        elif before is not None:
            operation = Delete(before.key, before.revision)
        else:
            return
        await self._context.store.write(Transaction((operation,), SYSTEM, "quarantine"))

    async def _report(self) -> None:
        """Let each policy say that proxies refuse what comes of it, or that they no longer do."""
        blamed = self._blamed()
        for policy in sorted(self._reported | blamed.keys()):
            conditions = [_condition(blamed[policy])] if policy in blamed else []
            stored = self._context.state.get(self._context.named_by(policy)[1])
            if stored is not None and (stored.status or {}).get("conditions", []) != conditions:
                status = {"conditions": conditions} if conditions else None
                put = Put(msgspec.structs.replace(stored, status=status), stored.revision)
                await self._context.store.write(Transaction((put,), SYSTEM, "status"))
        self._reported = set(blamed)

    def _blamed(self) -> dict[str, list[tuple[Key, Held]]]:
        """What is held because of each policy, by its KRI."""
        found: dict[str, list[tuple[Key, Held]]] = {}
        for proxy in sorted(self._holding):
            for each in self._holding[proxy].values():
                for policy in each.policies:
                    found.setdefault(policy, []).append((proxy, each))
        return found


def _is_news(before: Held | None, now: Held) -> bool:
    return before is None or before.version != now.version


def _condition(refusals: list[tuple[Key, Held]]) -> Json:
    proxies = sorted({str(proxy) for proxy, _ in refusals})
    more = f" and {len(proxies) - 3} more" if len(proxies) > 3 else ""  # noqa: PLR2004 - enough to know whom to ask
    _, first = refusals[0]
    message = f"refused by {', '.join(proxies[:3])}{more}, which {_instead(refusals)}: {first.text}"
    return {"type": "Accepted", "status": "False", "reason": "Refused", "message": message}


def _instead(refusals: list[tuple[Key, Held]]) -> str:
    """What proxies have in place of what they refused."""
    had = {bool(each.good_version) for _, each in refusals}
    if had == {True}:
        return "keep what they had"
    return "go without it" if had == {False} else "keep what they had of it, or go without it"


def _config_name(proxy: Key) -> str:
    return PREFIX + hashlib.blake2b("/".join(proxy[1:]).encode(), digest_size=12).hexdigest()


def _read(config: Resource) -> Record | None:
    try:
        return msgspec.json.decode(str(config.spec.get("config", "")), type=Record)
    except msgspec.DecodeError:
        _log.warning("what was held cannot be read, and is passed over", name=config.name)
        return None
