"""Bootstrap: the request of a proxy for its bootstrap, and the Envoy bootstrap in the response.

The request is Kuma's (`/bootstrap`). Control planes that cannot be reached are asked again until one answers;
one that refuses is not.
"""

import asyncio
import base64
import binascii
import json
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import structlog

from koguma import __version__
from koguma.dp.control_plane import (
    ControlPlaneClient,
    ControlPlaneDenied,
    ControlPlaneUnavailable,
    OtherControlPlane,
)
from koguma.dp.dataplane import DataplaneProxy
from koguma.envoy import admin_channel
from koguma.model.redacted import Redacted
from koguma.model.schema import Json

BIND_OUTBOUNDS: Final = "feature-bind-outbounds"
READINESS_SOCKET: Final = "feature-readiness-unix-socket"
EMBEDDED_DNS: Final = "feature-embedded-dns"
ACCESS_LOG_PIPE: Final = "feature-access-log-pipe"
DATA_SOURCES: Final = "feature-proxy-data-sources"
TOKEN_FILE: Final = "feature-token-file"  # noqa: S105 - a feature: Envoy reads the token from our file

# The default of --access-log-dir; core/build/network.py has the same one for proxies that do not send theirs.
LOG_DIRECTORIES: Final = ("/var/log/koguma",)

ENVOY_MINOR: Final = "1.40."

_RETRY_SECONDS: Final = (0.5, 5.0)
_BUILD: Final = re.compile(r"version:\s*(\S+/(\d+\.\d+\.\d+[^/\s]*)/\S+)")

_log = structlog.get_logger("koguma.dp")


class EnvoyBuild(msgspec.Struct, frozen=True):
    """What `envoy --version` says."""

    version: str = ""
    build: str = ""

    @property
    def is_compatible(self) -> bool:
        """Whether it is the minor version that our configuration is written for."""
        return self.version.startswith(ENVOY_MINOR)


class BootstrapParameters(msgspec.Struct, frozen=True, kw_only=True):
    """How the proxy runs, as far as its bootstrap and configuration depend on it."""

    workdir: str
    envoy: EnvoyBuild = EnvoyBuild()
    bind_outbounds: bool = False
    dns_port: int = 0
    readiness_port: int = 0
    is_ipv6: bool = False
    system_ca: str = ""
    log_directories: tuple[str, ...] = LOG_DIRECTORIES  # where policies may let Envoy write files
    allows_data_sources: bool = False  # whether policies may let Envoy read files and its environment
    memory_bytes_max: int = 0  # the memory limit of Envoy; 0: no limit

    @property
    def features(self) -> list[str]:
        """The optional features of this agent, in Kuma's words and ours."""
        features = [READINESS_SOCKET, ACCESS_LOG_PIPE, TOKEN_FILE, admin_channel.FEATURE]
        features += [EMBEDDED_DNS] if self.dns_port else []
        features += [DATA_SOURCES] if self.allows_data_sources else []
        return features + ([BIND_OUTBOUNDS] if self.bind_outbounds else [])


def read_version(text: str) -> EnvoyBuild | None:
    """The version in what `envoy --version` prints; None where no Envoy wrote it."""
    match = _BUILD.search(text)
    return EnvoyBuild(match[2], match[1]) if match else None


def request(
    proxy: DataplaneProxy,
    setup: BootstrapParameters,
    ca: str,
    token: Redacted | None,
    others: Sequence[OtherControlPlane] = (),
) -> dict[str, Json]:
    """The body of the request; `others` are the control planes that are not the one that is asked."""
    optional: dict[str, Json] = {
        "dataplaneToken": token.reveal() if token else "",
        "dataplaneResource": json.dumps(proxy.resource) if proxy.resource else "",
        "dnsPort": setup.dns_port,
        "readinessPort": setup.readiness_port,
        "controlPlanes": [{"host": host, **({"xdsPort": port} if port else {})} for host, port in others],
    }
    return {
        "mesh": proxy.mesh,
        "name": proxy.name,
        "proxyType": proxy.type.word,
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
    """The bootstrap in a response: JSON for Envoy; older control planes put the token into it."""
    packed = answer.get("bootstrap") if isinstance(answer, dict) else None
    try:
        text = base64.b64decode(packed or "", validate=True).decode()
        is_object = isinstance(json.loads(text), dict)
    except (binascii.Error, TypeError, ValueError):
        is_object = False
    if not is_object:
        raise ControlPlaneDenied(
            "what answers is no control plane of this kind: there is no bootstrap in its answer"
        )
    return Redacted(text)


def warnings(answer: Json) -> tuple[str, ...]:
    """The control plane's warnings about this proxy; Kuma's control plane sends none."""
    texts = answer.get("warnings") if isinstance(answer, dict) else None
    return tuple(map(str, texts)) if isinstance(texts, list) else ()


async def fetch(
    plane: ControlPlaneClient, body: Callable[[str], Json], warn: Callable[[str], None] = lambda _text: None
) -> Redacted:
    """Get the bootstrap, however long no control plane answers; each reason is logged once.

    `body` is the request to the control plane at an address.
    """
    logged = ""
    for pause in delays(*_RETRY_SECONDS):
        await plane.learn_ports()
        try:
            answer = await plane.post("/bootstrap", body)
            bootstrap = content(answer)
        except ControlPlaneUnavailable as unavailable:
            if str(unavailable) != logged:
                logged = str(unavailable)
                _log.warning("waiting for the control plane", address=plane.shown, why=logged)
            await asyncio.sleep(pause)
        else:
            if logged:
                _log.info("the control plane answers", address=plane.shown)
            for text in warnings(answer):
                warn(text)
            return bootstrap
    raise AssertionError("delays never end")


def delays(first: float, longest: float) -> Iterator[float]:
    """Exponential backoff: twice as long after each failure, up to a limit."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 2, longest)
