"""Probing: what proxies find out about the health of their applications, stored as the state of inbounds.

Every control plane does this for the proxies that report to it. A state is written over the revision on which
it was decided, and only where a report changes it; so a proxy that says the same every few seconds costs no
write.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context, mesh_key
from koguma.core.build import addresses
from koguma.core.build.network import NodeMetadata
from koguma.envoy import names
from koguma.envoy.bootstrap import ADMIN_ADDRESS
from koguma.envoy.health import HealthCheck
from koguma.fleet.gate import ProxyAdmission, ProxyGate
from koguma.fleet.node_metadata import node_metadata_of
from koguma.identity import dataplane_auth
from koguma.kinds import service_probe
from koguma.model.errors import Gone, NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.store.contract import Put, Transaction
from koguma.store.unavailable import log_unavailable
from koguma.xds.contract import ConnectRequest, HdsConnection

REGISTRATION_SECONDS: Final = 10.0  # to wait for a Dataplane that the proxy registers on its xDS stream
CHANGE_SECONDS: Final = 1.0  # between two changes of one proxy, however fast it reports
REASON: Final = "service probe"

_KINDS: Final = frozenset({"Dataplane"})

_log = structlog.get_logger("koguma.probing")


class HealthGate:
    """Admits proxies that check the health of their applications."""

    def __init__(self, context: Context, gate: ProxyGate) -> None:
        self._context = context
        self._gate = gate

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is a valid one, of whatever proxy."""
        self._gate.authenticate(token)

    async def connect(self, request: ConnectRequest) -> HdsConnection:
        """Admit a proxy with a token that is for it, once its Dataplane is stored."""
        if self._context.state.get(mesh_key(request.mesh)) is None:
            raise NotFound(f'there is no mesh "{request.mesh}"')
        token = self._gate.presented(request.mesh, request.token)
        dataplane_auth.check_name(token.claims, request.mesh, request.name)
        proxy = await self._dataplane(request)
        self._gate.check_stored(token.claims, proxy)
        admission = self._gate.admission(token, proxy)
        return HealthReporter(self._context, proxy.key, node_metadata_of(request.metadata), admission)

    async def _dataplane(self, request: ConnectRequest) -> Resource:
        """The Dataplane of a proxy; one that it registers on its xDS stream is waited for, but not long."""
        store, loop = self._context.store, asyncio.get_running_loop()
        changes, end = store.watch(_KINDS, store.state.revision), loop.time() + REGISTRATION_SECONDS
        while (found := store.state.named("Dataplane", request.mesh, request.name)) is None:
            left = end - loop.time()
            if left <= 0 or not request.metadata.get("dataplane.resource"):
                raise NotFound(f'there is no Dataplane "{request.name}" in mesh "{request.mesh}"')
            try:
                await changes.next_batch(left)
            except Gone:
                changes = store.watch(_KINDS, store.state.revision)
        return found


class HealthReporter:
    """One proxy that reports the health of its applications."""

    def __init__(self, context: Context, key: Key, node: NodeMetadata, admission: ProxyAdmission) -> None:
        self._context = context
        self._admission = admission
        self._key = key
        self._node = node

    def check_access(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""
        self._admission.check()

    def checks(self) -> tuple[HealthCheck, ...]:
        """What the proxy is to check: the applications behind its inbounds, and maybe Envoy itself."""
        found = self._context.state.get(self._key)
        if found is None:
            return ()
        proxying = (found.spec.get("networking") or {}).get("transparentProxying") or {}
        is_transparent = bool(proxying.get("redirectPortInbound") or self._node.redirect_inbound)
        probes = service_probe.checks(found.spec, is_transparent=is_transparent)
        # An inbound with a name for an address is not built either, and is shown as a failure there.
        return (*self._of_envoy(), *(each for each in probes if addresses.is_ip(each.address)))

    def _of_envoy(self) -> tuple[HealthCheck, ...]:
        """Kuma's agent says by Envoy's health, and in no other way, that the proxy is about to end."""
        port = self._node.admin_port
        if self._node.is_own_agent or not port:
            return ()
        return (HealthCheck(name=names.ADMIN, address=ADMIN_ADDRESS, port=port, path="/ready"),)

    async def report(self, healthy: Mapping[str, bool]) -> None:
        """Store what a report changes; where the store is away the next report does."""
        for _ in range(compare_and_swap.ATTEMPTS):
            now = self._context.state.get(self._key)
            if now is None:
                return  # it has gone
            spec = service_probe.reported(now.spec, healthy, names.ADMIN)
            if spec is now.spec:
                return
            put = Put(msgspec.structs.replace(now, spec=spec), now.revision)
            try:
                transaction = Transaction((put,), SYSTEM, REASON)
                if not await compare_and_swap.written_if_first(self._context.store, transaction):
                    continue
            except Unavailable as error:
                log_unavailable(_log, "a report waits for the store", error, proxy=str(self._key))
                return
            states = {service_probe.section(each): each.get("state") for each in _inbounds(spec)}
            _log.info("inbounds changed their state", proxy=now.core_name, mesh=now.mesh, states=states)
            await asyncio.sleep(CHANGE_SECONDS)
            return


def _inbounds(spec: Mapping[str, object]) -> list[Mapping[str, object]]:
    networking = spec["networking"]
    assert isinstance(networking, Mapping)
    return list(networking["inbound"])
