"""Bootstrap: what a proxy tells the control plane about itself, and the start configuration that it gets.

The request is Kuma's; the answer holds what Envoy reads when it starts. A control plane that
is not there yet is waited for, one that says no is not asked again.
"""

import asyncio
import base64
import binascii
import json
import platform
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import structlog

from koguma import __version__
from koguma.dp.control_plane import Away, ControlPlane, Denied
from koguma.dp.dataplane import Proxy
from koguma.model.redacted import Redacted
from koguma.model.schema import Json

BIND_OUTBOUNDS: Final = "feature-bind-outbounds"
READINESS_SOCKET: Final = "feature-readiness-unix-socket"
EMBEDDED_DNS: Final = "feature-embedded-dns"
ACCESS_LOG_PIPE: Final = "feature-access-log-pipe"
DATA_SOURCES: Final = "feature-proxy-data-sources"
TOKEN_FILE: Final = "feature-token-file"  # noqa: S105 - that Envoy reads the token from our file

# As core/build/network.py has it, for what most proxies share; nothing of the system's own is in there.
LOG_DIRECTORIES: Final = ("/var/log/koguma",)

ENVOY_MINOR: Final = "1.40."

_RETRY_SECONDS: Final = (0.5, 5.0)
_BUILD: Final = re.compile(r"version:\s*(\S+/(\d+\.\d+\.\d+[^/\s]*)/\S+)")

_log = structlog.get_logger("koguma.dp")


class EnvoyVersion(msgspec.Struct, frozen=True):
    """What an Envoy says about itself."""

    version: str = ""
    build: str = ""

    @property
    def is_compatible(self) -> bool:
        """Whether it is of the version that our configuration is written for."""
        return self.version.startswith(ENVOY_MINOR)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the proxy runs, as far as the control plane needs to know."""

    workdir: str
    envoy: EnvoyVersion = EnvoyVersion()
    bind_outbounds: bool = False
    dns_port: int = 0
    readiness_port: int = 0
    is_ipv6: bool = False
    system_ca: str = ""
    log_directories: tuple[str, ...] = LOG_DIRECTORIES  # where policies may let Envoy write files
    gives_data: bool = False  # whether they may let it read files and its environment
    memory_bytes_max: int = 0  # what Envoy may take; 0 where nothing limits it

    @property
    def features(self) -> list[str]:
        """What this proxy can do beyond the basics."""
        found = [READINESS_SOCKET, ACCESS_LOG_PIPE, TOKEN_FILE]
        found += [EMBEDDED_DNS] if self.dns_port else []
        found += [DATA_SOURCES] if self.gives_data else []
        return found + ([BIND_OUTBOUNDS] if self.bind_outbounds else [])


def read_version(text: str) -> EnvoyVersion | None:
    """The version in what `envoy --version` prints; None where no Envoy wrote it."""
    found = _BUILD.search(text)
    return EnvoyVersion(found[2], found[1]) if found else None


def request(proxy: Proxy, setup: Setup, ca: str, token: Redacted | None) -> dict[str, Json]:
    """The body of the request."""
    optional: dict[str, Json] = {
        "dataplaneToken": token.reveal() if token else "",
        "dataplaneResource": json.dumps(proxy.resource) if proxy.resource else "",
        "dnsPort": setup.dns_port,
        "readinessPort": setup.readiness_port,
    }
    return {
        "mesh": proxy.mesh,
        "name": proxy.name,
        "proxyType": "dataplane",
        **{name: value for name, value in optional.items() if value},
        "version": {
            "kumaDp": {"version": __version__, "gitTag": "", "gitCommit": "", "buildDate": ""},
            "envoy": {**msgspec.to_builtins(setup.envoy), "kumaDpCompatible": setup.envoy.is_compatible},
        },
        "caCert": ca,
        "dynamicMetadata": {},
        "operatingSystem": platform.system().lower(),
        "features": setup.features,
        "accessLogDirectories": list(setup.log_directories),
        "resources": {"maxHeapSizeBytes": setup.memory_bytes_max},
        "workdir": setup.workdir,
        "metricsResources": {"certPath": "", "keyPath": ""},
        "systemCaPath": setup.system_ca,
        "ipv6Enabled": setup.is_ipv6,
        "spireResources": {"socketPath": ""},
    }


def content(answer: Json) -> Redacted:
    """The bootstrap in an answer: JSON that Envoy reads, with the token in it."""
    packed = answer.get("bootstrap") if isinstance(answer, dict) else None
    try:
        text = base64.b64decode(packed or "", validate=True).decode()
        is_object = isinstance(json.loads(text), dict)
    except (binascii.Error, TypeError, ValueError):
        is_object = False
    if not is_object:
        raise Denied("what answers is no control plane of this kind: there is no bootstrap in its answer")
    return Redacted(text)


def warnings(answer: Json) -> tuple[str, ...]:
    """What the control plane finds odd about the proxy that asks; other control planes say nothing."""
    found = answer.get("warnings") if isinstance(answer, dict) else None
    return tuple(map(str, found)) if isinstance(found, list) else ()


async def fetch(
    plane: ControlPlane, body: Callable[[], Json], warn: Callable[[str], None] = lambda _text: None
) -> Redacted:
    """The bootstrap, however long the control plane is away; the log says so once for each reason."""
    said = ""
    for pause in delays(*_RETRY_SECONDS):
        try:
            answer = await plane.post("/bootstrap", body())
            found = content(answer)
        except Away as away:
            if str(away) != said:
                said = str(away)
                _log.warning("waiting for the control plane", address=plane.address, why=said)
            await asyncio.sleep(pause)
        else:
            if said:
                _log.info("the control plane is there", address=plane.address)
            for text in warnings(answer):
                warn(text)
            return found
    raise AssertionError("delays never end")


def delays(first: float, longest: float) -> Iterator[float]:
    """How long to wait after each failure: twice as long every time, up to a limit."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 2, longest)
