"""Refused proxies: who was not let in, since when, how often and why, and what to do about it.

A proxy that is refused tries again for ever and appears nowhere else, so it is remembered here until it is
admitted, or until it has not tried for a while. Anybody may try under any name, so only some are remembered:
names that tried once are dropped first, and those that try again, as real proxies do, are kept.
"""

import ipaddress
import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import unquote

import msgspec
import structlog

from koguma.identity.dataplane_auth import IdentityNotInToken
from koguma.model.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KogumaError,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from koguma.model.schema import Json
from koguma.runtime.checks import Check

REFUSED_MAX: Final = 500  # names that are remembered, of those that tried once and of those that retried
AGE_MAX: Final = timedelta(minutes=15)  # since the last attempt; an Envoy tries every four seconds

_NAME_MAX: Final = 253  # characters, as of a DNS name
_REASON_MAX: Final = 500
_SHOWN_MAX: Final = 10
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"

_log = structlog.get_logger("koguma.proxies")


class RefusedProxy(msgspec.Struct, frozen=True):
    """A proxy that was not admitted, and which port it tried last: `xds` or `bootstrap`."""

    mesh: str
    name: str
    address: str
    port: str
    reason: str
    hint: str
    since: datetime
    last: datetime
    count: int = 1

    @property
    def place(self) -> str:
        """Its mesh, for people; a zone proxy has none."""
        return f"mesh {self.mesh}" if self.mesh else "zone proxy"


class RefusedProxies:
    """The proxies that this control plane did not admit."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._once: OrderedDict[tuple[str, str], RefusedProxy] = OrderedDict()
        self._again: OrderedDict[tuple[str, str], RefusedProxy] = OrderedDict()
        self._is_crowded = False
        self.n_attempts = 0  # refused since the start

    def __len__(self) -> int:
        self._forget_old()
        return len(self._once) + len(self._again)

    def refuse(self, port: str, mesh: str, name: str, address: str, error: KogumaError) -> None:
        """Note that a proxy was not admitted; logged once for each reason."""
        if isinstance(error, Unavailable):
            return  # it is admitted as soon as we can serve it
        self.n_attempts += 1
        self._forget_old()
        now, mesh, name = self._clock(), _printable(mesh, _NAME_MAX), _printable(name, _NAME_MAX)
        before = self._once.pop((mesh, name), None) or self._again.pop((mesh, name), None)
        refused = RefusedProxy(
            mesh,
            name,
            _host(address),
            port,
            _reason(error, mesh, name),
            _hint(error, mesh, name),
            before.since if before else now,
            now,
            before.count + 1 if before else 1,
        )
        self._keep(refused, is_known=before is not None)
        if before is None or before.reason != refused.reason:
            self._log_refusal(refused)

    def admit(self, mesh: str, name: str) -> None:
        """A proxy was admitted."""
        key = (_printable(mesh, _NAME_MAX), _printable(name, _NAME_MAX))
        self._once.pop(key, None)
        self._again.pop(key, None)

    def __iter__(self) -> Iterator[RefusedProxy]:
        """All of them, by mesh and name."""
        self._forget_old()
        found = {**self._once, **self._again}
        return iter([found[key] for key in sorted(found)])

    def as_json(self, mesh: str = "") -> Iterator[Mapping[str, Json]]:
        """Those of a mesh, or all, as the API returns them."""
        for each in self:
            if mesh in ("", each.mesh) or not each.mesh:
                yield {
                    "name": each.name,
                    "mesh": each.mesh,
                    "address": each.address,
                    "door": each.port,
                    "reason": each.reason,
                    "hint": each.hint,
                    "since": each.since.strftime(_TIME),
                    "lastSeen": each.last.strftime(_TIME),
                    "count": each.count,
                }

    def checks(self) -> Iterator[Check]:
        """What an operator should know."""
        found = list(self)
        for each in found[:_SHOWN_MAX]:
            times = "once" if each.count == 1 else f"{each.count} times"
            text = (
                f"{each.name} ({each.place}, from {each.address}) was refused {times}"
                f" since {each.since.strftime(_TIME)}: {each.reason}"
            )
            yield Check("refused proxies", "error", text, each.hint)
        if len(found) > _SHOWN_MAX:
            text = f"{len(found) - _SHOWN_MAX} more proxies were refused"
            yield Check("refused proxies", "error", text, "see all of them with `koguma get proxies`")

    def gauges(self) -> Iterator[tuple[str, str, str, float]]:
        """Figures for the metrics page."""
        yield "koguma_proxies_refused", "Proxies that were not let in and still knock.", "gauge", len(self)
        yield "koguma_proxy_refusals", "Times that a proxy was not let in.", "counter", self.n_attempts

    def _keep(self, refused: RefusedProxy, *, is_known: bool) -> None:
        kept = self._again if is_known else self._once
        kept[refused.mesh, refused.name] = refused
        if len(kept) > REFUSED_MAX:
            kept.popitem(last=False)

    def _log_refusal(self, refused: RefusedProxy) -> None:
        """One line for each proxy and reason; where names come without end, one line for all of them."""
        is_crowded = len(self._once) >= REFUSED_MAX
        if is_crowded and self._is_crowded:
            return
        if is_crowded:
            _log.warning("many proxies are refused; not each of them is logged", remembered=REFUSED_MAX)
        else:
            _log.warning(
                "proxy refused",
                mesh=refused.mesh,
                proxy=refused.name,
                address=refused.address,
                door=refused.port,
                reason=refused.reason,
                hint=refused.hint,
            )
        self._is_crowded = is_crowded

    def _forget_old(self) -> None:
        limit = self._clock() - AGE_MAX
        for kept in (self._once, self._again):
            while kept and next(iter(kept.values())).last < limit:
                kept.popitem(last=False)


def _printable(text: str, length_max: int) -> str:
    """A text from an unauthenticated peer, cut and without control characters that a terminal would obey."""
    cut = text if len(text) <= length_max else text[: length_max - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in cut)


def _host(address: str) -> str:
    """The address of a peer without its port, which is another one each time; gRPC writes `ipv4:IP:PORT`."""
    family, _, rest = address.partition(":")
    if family in ("ipv4", "ipv6"):
        address = unquote(rest).rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return _printable(family, _NAME_MAX)


def _reason(error: KogumaError, mesh: str, name: str) -> str:
    text = str(error)
    if isinstance(error, NotFound) and text in ("", "Not found"):
        text = f'there is no Dataplane "{name}" in mesh "{mesh}"' if mesh else f'there is no "{name}"'
    return _printable(text, _REASON_MAX)


def _hint(error: KogumaError, mesh: str, name: str) -> str:
    """The next step."""
    if isinstance(error, Conflict):
        return "stop one of the two, or start it under a name of its own (--name)"
    if isinstance(error, NotFound):
        if not mesh:
            return "apply the ZoneEgress or ZoneIngress, or start the proxy so that it brings one (--port)"
        return "apply the Dataplane, or start the proxy so that it brings one (--service or --dataplane-file)"
    if isinstance(error, Invalid | BadRequest):
        return "correct what the proxy is started with, or the mesh; it is let in as soon as that fits"
    bound = f"--mesh {shlex.quote(mesh)} --name {shlex.quote(name)} --service SERVICE"
    command = f"koguma token {f'dataplane {bound}' if mesh else 'zone --scope SCOPE'} --valid-for 720h"
    if isinstance(error, IdentityNotInToken):
        command = _printable(error.command, _REASON_MAX)
    token = f"`{command}` makes a token for it; write it to the file of --dataplane-token-file"
    if isinstance(error, Unauthenticated | Forbidden):
        return f"{token}, which is read again without a restart"
    return f"{token}, and start the proxy with it"
