"""Aggregated servers: asks the servers of APIServices what they serve, and writes whether they answer.

Each control plane asks for itself, when an APIService changes and regularly; it serves by its own answer. The
condition `Available` is written when it changes.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

import aiohttp
import msgspec
import structlog

from koguma.access.user import KUBE_AUTHENTICATED, SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.kube import aggregation
from koguma.kube.aggregation import RemoteService, RemoteVersion
from koguma.kube.kinds import apiregistration
from koguma.kube.kinds.custom_definitions import DEFINITION
from koguma.kube.registry import Registry
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.reconcile.following import PAUSE_SECONDS, follow
from koguma.reconcile.front_proxy import FrontProxy
from koguma.runtime.outgoing_calls import CallFailed, limited_body, reason_of
from koguma.store.contract import Put, Transaction, rfc3339
from koguma.store.watch import Watch

KIND: Final = apiregistration.API_SERVICE.stored_as
CHECK_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 5.0
_AGGREGATOR: Final = "system:kube-aggregator"
_OK: Final = 200
_NOT_ASKED: Final = "it was not asked yet"
_LOCAL: Final = "this control plane serves that group and version itself"
_REASON: Final = "aggregated servers"

_log = structlog.get_logger("koguma.aggregation")


class AggregatedServers:
    """What other servers serve through this one, as they last said."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._clock = clock
        self._front_proxy = FrontProxy(context, clock)
        self._stored: tuple[Resource, ...] = ()
        self._local: Registry | None = None
        self._remotes: tuple[RemoteVersion, ...] = ()

    @property
    def remotes(self) -> tuple[RemoteVersion, ...]:
        """All groups and versions of other servers; the same tuple until something changes."""
        stored, local = self._context.state.listed(KIND), self._context.catalog.registry
        if stored is not self._stored or local is not self._local:
            self._stored, self._local = stored, local
            self._set(tuple(self._known(service) for service in self._services()))
        return self._remotes

    def find(self, group: str, version: str) -> RemoteVersion | None:
        """Who serves a group and version, if it is another server."""
        for remote in self.remotes:
            if (remote.service.group, remote.service.version) == (group, version):
                return remote
        return None

    def _services(self) -> list[RemoteService]:
        read = (aggregation.remote_service(resource) for resource in self._stored)
        local = self._context.catalog.registry
        return [s for s in read if s is not None and not local.at(s.group, s.version)]

    def _known(self, service: RemoteService) -> RemoteVersion:
        """What is known of a server; only a mark of trust may change without asking again."""
        for remote in self._remotes:
            if msgspec.structs.replace(remote.service, is_trusted=service.is_trusted) == service:
                return msgspec.structs.replace(remote, service=service)
        return RemoteVersion(service, problem=_NOT_ASKED)

    def _set(self, remotes: tuple[RemoteVersion, ...]) -> None:
        if remotes != self._remotes:
            self._remotes = remotes
            self._context.catalogs.trust(aggregation.trusted_ids(remotes))

    async def run(self) -> None:
        """Ask when an APIService or what is served here changes, and regularly, until cancelled."""
        await follow(self._context.store, frozenset({KIND, DEFINITION.stored_as}), self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        while True:
            await self.check()
            if self._context.state.listed(KIND):
                await watch.next_batch(CHECK_SECONDS)
            else:
                await watch.next_batch(None)
            await asyncio.sleep(PAUSE_SECONDS)

    async def check(self) -> None:
        """Ask every server, and write the conditions that changed."""
        services = [remote.service for remote in self.remotes]
        if services:
            await self._front_proxy.prepare()
        asked = await asyncio.gather(*map(self._asked, services))
        by_service = {remote.service: remote for remote in asked}
        self._set(tuple(by_service.get(remote.service, remote) for remote in self.remotes))
        for resource in self._context.state.listed(KIND):
            await self._write(resource, self._find_named(resource.name))

    def _find_named(self, name: str) -> RemoteVersion | None:
        return next((remote for remote in self._remotes if remote.service.name == name), None)

    async def _asked(self, service: RemoteService) -> RemoteVersion:
        path = f"/apis/{service.group}/{service.version}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                document = await self._document(service, path)
                resources = aggregation.listed(document, service)
                digest = await self._openapi_digest(service)
        except TimeoutError:
            return RemoteVersion(service, problem=f"GET {path}: no answer within {ANSWER_SECONDS:g}s")
        except CallFailed as error:
            return RemoteVersion(service, problem=f"GET {path}: {error.detail}")
        except (ValueError, aiohttp.ClientError, OSError) as error:
            text = str(error) if isinstance(error, ValueError) else reason_of(error)
            return RemoteVersion(service, problem=f"GET {path}: {text}")
        return RemoteVersion(service, resources, openapi_digest=digest)

    async def _document(self, service: RemoteService, path: str) -> Json:
        headers = {
            "Accept": "application/json",
            aggregation.USER_HEADER: _AGGREGATOR,
            aggregation.GROUP_HEADER: KUBE_AUTHENTICATED,
        }
        async with self._context.calls.open(
            "GET",
            f"{service.address}{path}",
            headers=headers,
            ca_bundle=service.ca_bundle,
            identifies_us=True,
        ) as response:
            if response.status != _OK:
                raise CallFailed(f"it answers with status {response.status}")
            body = await limited_body(response)
        try:
            return msgspec.json.decode(body)
        except msgspec.MsgspecError:
            raise CallFailed("it answers with something else than JSON") from None

    async def _openapi_digest(self, service: RemoteService) -> str:
        """The hash under which its OpenAPI v3 is found; empty where it has none."""
        with suppress(CallFailed):
            index = await self._document(service, "/openapi/v3")
            return aggregation.openapi_digest(index, service)
        return ""

    async def _write(self, resource: Resource, remote: RemoteVersion | None) -> None:
        condition = _condition(resource.status, remote, rfc3339(self._clock()))
        if condition is None:
            return
        status = {"conditions": [condition]}
        written = msgspec.structs.replace(resource, status=status)
        transaction = Transaction((Put(written, resource.revision),), SYSTEM, _REASON)
        await compare_and_swap.written_if_first(self._context.store, transaction)
        _log.info(
            "aggregated server", name=resource.name, available=condition["status"], why=condition["message"]
        )


def _condition(status: Json, remote: RemoteVersion | None, time: str) -> dict[str, Json] | None:
    """The condition to write; None where the stored one says the same."""
    if remote is None:
        said = ("False", "Local", _LOCAL)
    elif remote.is_available:
        said = ("True", "Passed", "all checks passed")
    else:
        said = ("False", "FailedDiscoveryCheck", remote.problem)
    stored = apiregistration.condition(status) or {}
    if (stored.get("status"), stored.get("reason"), stored.get("message")) == said:
        return None
    since = stored.get("lastTransitionTime") if stored.get("status") == said[0] else None
    word, reason, message = said
    return {
        "type": apiregistration.AVAILABLE,
        "status": word,
        "lastTransitionTime": since or time,
        "reason": reason,
        "message": message,
    }
