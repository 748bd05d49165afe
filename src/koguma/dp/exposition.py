"""Exposition: metrics in Prometheus' text format, parsed into families, filtered, and merged again.

Sample lines are kept as text, so that a page of many thousands is cheap. Where two sources have a family of
the same name, its HELP and TYPE come from the first: the format allows each once per page.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import re2

from koguma.model.schema import Json

_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?\s+[-+.0-9NI]")
_SUFFIXES: Final = ("_bucket", "_sum", "_count", "_total", "_created", "_info")

# The profile `Basic`: what dashboards of a mesh show (requests, connections, bytes, endpoints, TLS, health).
_BASIC: Final = re.compile(
    r"envoy_(?:"
    r"cluster_(?:upstream_(?:rq(?:_total|_active|_xx|_time|_timeout|_retry|_retry_success|_retry_overflow"
    r"|_pending_active|_pending_overflow|_rx_reset|_tx_reset|_completed)?"
    r"|cx_(?:total|active|connect_fail|connect_timeout|connect_ms|destroy|rx_bytes_total|tx_bytes_total|overflow))"
    r"|external_upstream_rq.*|membership_(?:healthy|total|degraded|excluded)|health_check_.*"
    r"|outlier_detection_ejections_.*|circuit_breakers_.*|grpc_.*|lb_healthy_panic|assignment_stale"
    r"|ssl_(?:handshake|connection_error|fail_verify_.*))"
    r"|http_(?:downstream_(?:rq(?:_total|_active|_xx|_time|_completed|_timeout|_rx_reset|_tx_reset)?"
    r"|cx_(?:total|active|destroy|length_ms|rx_bytes_total|tx_bytes_total|ssl_total))"
    r"|rbac_.*|fault_.*|local_rate_limit_.*|no_route|no_cluster)"
    r"|http_local_rate_limit_.*|local_rate_limit_.*|rbac_.*"
    r"|tcp_(?:downstream_(?:cx_(?:total|rx_bytes_total|tx_bytes_total|no_route)|flow_control_.*)|idle_timeout|rbac_.*)"
    r"|listener_(?:downstream_cx_(?:total|active|destroy|overflow)|http_downstream_rq_.*|ssl_.*|no_filter_chain_match)"
    r"|vhost_.*"
    r"|server_(?:live|state|uptime|concurrency|memory_.*|total_connections|days_until_first_cert_expiring|version"
    r"|initialization_time_ms|watchdog_.*)"
    r"|control_plane_.*|cluster_manager_(?:active_clusters|cds_.*)|listener_manager_(?:total_listeners_active|lds_.*)"
    r"|build_.*)"
)


class MetricFamily:
    """A metric family: its sample lines, with the TYPE and HELP of the page."""

    __slots__ = ("help", "name", "samples", "type")

    def __init__(self, name: str) -> None:
        self.name = name
        self.type = ""
        self.help = ""
        self.samples: list[str] = []


def families(text: str) -> dict[str, MetricFamily]:
    """The families of a page, by name; lines that are not of the format are left out."""
    by_name: dict[str, MetricFamily] = {}
    current: MetricFamily | None = None
    for line in text.splitlines():
        if line.startswith("#"):
            current = _read_comment(line, by_name) or current
            continue
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        if current is None or not _belongs(sample[1], current.name):
            current = by_name.setdefault(sample[1], MetricFamily(sample[1]))
        current.samples.append(line)
    return by_name


def _read_comment(line: str, by_name: dict[str, MetricFamily]) -> MetricFamily | None:
    """The family that a TYPE or HELP line is about, with what the line says."""
    words = line.split(None, 3)
    if len(words) < 3 or words[1] not in ("TYPE", "HELP"):  # noqa: PLR2004 - `#`, TYPE or HELP, a name
        return None
    family = by_name.setdefault(words[2], MetricFamily(words[2]))
    rest = words[3] if len(words) > 3 else ""  # noqa: PLR2004 - the text after the name
    if words[1] == "TYPE":
        family.type = rest.strip()
    else:
        family.help = rest
    return family


def _belongs(sample: str, family: str) -> bool:
    return sample == family or (sample.startswith(family) and sample[len(family) :] in _SUFFIXES)


def merged(pages: Iterable[Mapping[str, MetricFamily]]) -> str:
    """Several pages as one text."""
    by_name: dict[str, list[MetricFamily]] = {}
    for page in pages:
        for name, family in page.items():
            by_name.setdefault(name, []).append(family)
    return "".join(line for namesakes in by_name.values() for line in _text(namesakes))


def _text(namesakes: list[MetricFamily]) -> Iterator[str]:
    """The lines of all families of one name."""
    first = namesakes[0]
    for family in namesakes:
        if family.help:
            yield f"# HELP {first.name} {family.help}\n"
            break
    for family in namesakes:
        if family.type:
            yield f"# TYPE {first.name} {family.type}\n"
            break
    for family in namesakes:
        for line in family.samples:
            yield f"{line}\n"


def labelled(page: dict[str, MetricFamily], name: str, value: str) -> dict[str, MetricFamily]:
    """The page with one more label on each sample."""
    label = _label(name, value)
    for family in page.values():
        family.samples = [_with_label(line, label) for line in family.samples]
    return page


def add(page: dict[str, MetricFamily], type_: str, line: str, label: tuple[str, str]) -> None:
    """Add a sample to a page, with one label."""
    name = line.partition(" ")[0]
    family = page.setdefault(name, MetricFamily(name))
    family.type = type_
    family.samples.append(_with_label(line, _label(*label)))


def _label(name: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{quoted}"'


def _with_label(line: str, label: str) -> str:
    sample = _SAMPLE.match(line)
    assert sample is not None, line
    name, labels = sample[1], (sample[2] or "{}")[1:-1].strip()
    value = line[sample.end(2) if sample[2] else sample.end(1) :]
    return f"{name}{{{label}{',' if labels else ''}{labels}}}{value}"


class MetricsFilter(msgspec.Struct, frozen=True):
    """Which of Envoy's families are kept: those of the profiles, minus `excluded`, plus `included`."""

    profiles: tuple[str, ...] = ("All",)
    excluded: tuple[Any, ...] = ()  # RE2, whose matching time is linear whatever a policy's author wrote
    included: tuple[Any, ...] = ()

    def keeps(self, name: str) -> bool:
        """Whether the family of that name is kept."""
        if any(pattern.search(name) for pattern in self.included):
            return True
        if any(pattern.search(name) for pattern in self.excluded):
            return False
        return "All" in self.profiles or ("Basic" in self.profiles and _BASIC.fullmatch(name) is not None)

    def apply(self, page: Mapping[str, MetricFamily]) -> dict[str, MetricFamily]:
        """The families of a page that are kept."""
        return {name: family for name, family in page.items() if self.keeps(name)}


def profiles_filter(profiles: Json) -> MetricsFilter:
    """The filter of MeshMetric's `sidecar.profiles`."""
    conf = profiles or {}
    appended = tuple(profile["name"] for profile in conf.get("appendProfiles") or ())
    return MetricsFilter(
        appended or ("All",),
        tuple(_pattern(selector) for selector in conf.get("exclude") or ()),
        tuple(_pattern(selector) for selector in conf.get("include") or ()),
    )


_PATTERNS: Final[Mapping[str, Callable[[str], str]]] = {
    "Exact": lambda text: rf"\A{re2.escape(text)}\z",
    "Prefix": lambda text: rf"\A{re2.escape(text)}",
    "Contains": re2.escape,
    "Regex": lambda text: text,
}


def _pattern(selector: Json) -> Any:
    return re2.compile(_PATTERNS[selector["type"]](selector["match"]))
