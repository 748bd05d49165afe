"""Exposition: metrics in Prometheus' text format, taken apart by family, chosen, and put together again.

Lines are kept as they came, so that a page of many thousands costs little. Of two sources with a family of
one name the first one says what it is; a page must not say that twice.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import re2

from koguma.model.schema import Json

UNTYPED: Final = "untyped"

_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?\s+[-+.0-9NI]")
_SUFFIXES: Final = ("_bucket", "_sum", "_count", "_total", "_created", "_info")

# What dashboards of a mesh show: calls and answers, connections, bytes, endpoints, certificates, health.
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


class Family:
    """Samples that belong together: their lines, with what the page says about them before."""

    __slots__ = ("help", "name", "samples", "type")

    def __init__(self, name: str) -> None:
        self.name = name
        self.type = ""
        self.help = ""
        self.samples: list[str] = []


def families(text: str) -> dict[str, Family]:
    """The families of a page, by name; lines that are none of the format are left out."""
    found: dict[str, Family] = {}
    current: Family | None = None
    for line in text.splitlines():
        if line.startswith("#"):
            current = _described(line, found) or current
            continue
        name = _SAMPLE.match(line)
        if name is None:
            continue
        if current is None or not _belongs(name[1], current.name):
            current = found.setdefault(name[1], Family(name[1]))
        current.samples.append(line)
    return found


def _described(line: str, found: dict[str, Family]) -> Family | None:
    words = line.split(None, 3)
    if len(words) < 3 or words[1] not in ("TYPE", "HELP"):  # noqa: PLR2004 - a sign, a word and a name
        return None
    family = found.setdefault(words[2], Family(words[2]))
    rest = words[3] if len(words) > 3 else ""  # noqa: PLR2004 - and what is said
    if words[1] == "TYPE":
        family.type = rest.strip()
    else:
        family.help = rest
    return family


def _belongs(sample: str, family: str) -> bool:
    return sample == family or (sample.startswith(family) and sample[len(family) :] in _SUFFIXES)


def joined(pages: Iterable[Mapping[str, Family]]) -> str:
    """Several pages as one."""
    together: dict[str, list[Family]] = {}
    for page in pages:
        for name, family in page.items():
            together.setdefault(name, []).append(family)
    return "".join(line for same in together.values() for line in _written(same))


def _written(same: list[Family]) -> Iterator[str]:
    first = same[0]
    for family in same:
        if family.help:
            yield f"# HELP {first.name} {family.help}\n"
            break
    for family in same:
        if family.type:
            yield f"# TYPE {first.name} {family.type}\n"
            break
    for family in same:
        for line in family.samples:
            yield f"{line}\n"


def labelled(page: dict[str, Family], name: str, value: str) -> dict[str, Family]:
    """The page with one more label on each sample."""
    label = _label(name, value)
    for family in page.values():
        family.samples = [_with_label(line, label) for line in family.samples]
    return page


def add(page: dict[str, Family], type_: str, line: str, label: tuple[str, str]) -> None:
    """Add a sample to a page, with one label."""
    name = line.partition(" ")[0]
    family = page.setdefault(name, Family(name))
    family.type = type_
    family.samples.append(_with_label(line, _label(*label)))


def _label(name: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{quoted}"'


def _with_label(line: str, label: str) -> str:
    name = _SAMPLE.match(line)
    assert name is not None, line
    head, labels = name[1], (name[2] or "{}")[1:-1].strip()
    rest = line[name.end(2) if name[2] else name.end(1) :]
    return f"{head}{{{label}{',' if labels else ''}{labels}}}{rest}"


class Choice(msgspec.Struct, frozen=True):
    """Which of Envoy's families are kept: what profiles have, without the excluded, with the included."""

    profiles: tuple[str, ...] = ("All",)
    excluded: tuple[Any, ...] = ()  # expressions of RE2, whose time does not depend on who wrote them
    included: tuple[Any, ...] = ()

    def keeps(self, name: str) -> bool:
        """Whether the family of that name is kept."""
        if any(each.search(name) for each in self.included):
            return True
        if any(each.search(name) for each in self.excluded):
            return False
        return "All" in self.profiles or ("Basic" in self.profiles and _BASIC.fullmatch(name) is not None)

    def of(self, page: Mapping[str, Family]) -> dict[str, Family]:
        """What is kept of a page."""
        return {name: family for name, family in page.items() if self.keeps(name)}


def choice(profiles: Json) -> Choice:
    """The choice that a policy's `sidecar.profiles` means."""
    said = profiles or {}
    named = tuple(each["name"] for each in said.get("appendProfiles") or ())
    return Choice(
        named or ("All",),
        tuple(_pattern(each) for each in said.get("exclude") or ()),
        tuple(_pattern(each) for each in said.get("include") or ()),
    )


_PATTERNS: Final[Mapping[str, Callable[[str], str]]] = {
    "Exact": lambda text: rf"\A{re2.escape(text)}\z",
    "Prefix": lambda text: rf"\A{re2.escape(text)}",
    "Contains": re2.escape,
    "Regex": lambda text: text,
}


def _pattern(selector: Json) -> Any:
    return re2.compile(_PATTERNS[selector["type"]](selector["match"]))
