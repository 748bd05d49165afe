"""What is in every namespace: the ServiceAccount `default`, and the CA of this API in `kube-root-ca.crt`.

Programs of Kubernetes expect both. What is deleted or changed is made again. Control planes of one store may
have different CAs. So the copy in the system namespace, which only administrators write, has those of all of
them, and the copies in other namespaces are equal to it.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec
import structlog

from koguma.access import service_accounts
from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap, namespaces
from koguma.application.context import Context
from koguma.identity import certificates
from koguma.kube.kinds import core
from koguma.model.errors import NotFound
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.reconcile.following import follow
from koguma.runtime.clock import now
from koguma.store.contract import Operation, Put, Require, Transaction
from koguma.store.watch import Watch

ACCOUNT: Final = "default"
AUTHORITIES: Final = "kube-root-ca.crt"
_FILE: Final = "ca.crt"
_ANNOTATION: Final = "kubernetes.io/description"
_WORDS: Final = "The CAs of this API, to verify its certificate. Written by the control plane."
_KINDS: Final = frozenset(kind.stored_as for kind in (core.NAMESPACE, core.SERVICE_ACCOUNT, core.CONFIG_MAP))

_log = structlog.get_logger("koguma.namespace_contents")


class NamespaceContents:
    """Keeps the service account and the CA of each namespace, until cancelled."""

    def __init__(self, context: Context, ca: str) -> None:
        self._context = context
        self._ca = ca  # of this control plane, as PEM

    async def run(self) -> None:
        """Look at all namespaces, and then at those in which something changes."""
        await follow(self._context.store, _KINDS, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        await self._fill_all()
        system = self._context.control_plane.system_namespace
        while True:
            changes = await watch.next_batch(None)
            names = {
                change.resource.name
                if change.resource.kind == namespaces.NAMESPACE
                else change.resource.namespace
                for change in changes
                if _concerns(change.resource)
            }
            if system in names:
                await self._fill_all()
            else:
                for name in sorted(names):
                    await self._fill(name)

    async def _fill_all(self) -> None:
        await self._fill(self._context.control_plane.system_namespace)
        for namespace in self._context.state.listed(namespaces.NAMESPACE):
            await self._fill(namespace.name)

    async def _fill(self, name: str) -> None:
        namespace = self._context.state.get(namespaces.namespace_key(name))
        if namespace is None or namespace.meta.deletion_timestamp:
            return
        operations = list(self._operations(name))
        if operations:
            required = Require(namespace.key, NotFound(f"namespace {name} is gone"))
            transaction = Transaction((required, *operations), SYSTEM, "contents of a namespace")
            await compare_and_swap.written_if_first(self._context.store, transaction)

    def _operations(self, name: str) -> Iterator[Operation]:
        state = self._context.state
        account = service_accounts.account_key(name, ACCOUNT)
        if state.entry(account) is None:
            yield Put(_object(account, {}), 0)
        key = Key(core.CONFIG_MAP.stored_as, "", "", name, AUTHORITIES)
        stored, data = state.entry(key), {_FILE: self._authorities(now())}
        if stored is None:
            yield Put(_object(key, {"data": data}, {_ANNOTATION: _WORDS}), 0)
        elif isinstance(stored, Resource) and stored.spec.get("data") != data:
            yield Put(msgspec.structs.replace(stored, spec={"data": data}), stored.revision)

    def _authorities(self, at: datetime) -> str:
        """The CAs of all control planes: those of the system namespace's copy, and our own."""
        system = self._context.control_plane.system_namespace
        stored = self._context.state.get(Key(core.CONFIG_MAP.stored_as, "", "", system, AUTHORITIES))
        spec: Json = stored.spec if stored is not None else {}
        known = str((spec.get("data") or {}).get(_FILE, "")) if isinstance(spec, dict) else ""
        return certificates.bundle((known, self._ca), at)


def _concerns(resource: Resource) -> bool:
    return resource.kind == namespaces.NAMESPACE or resource.name in (ACCOUNT, AUTHORITIES)


def _object(key: Key, spec: Json, annotations: dict[str, str] | None = None) -> Resource:
    return Resource(
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        core_name=f"{key.name}.{key.namespace}",
        annotations=annotations or {},
        spec=spec,
    )
