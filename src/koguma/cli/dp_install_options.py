"""Options of `koguma dp install transparent-proxy`, under headings, and the parsers of their values."""

import ipaddress
import pwd
from typing import TYPE_CHECKING, Final

import click

from koguma.cli.dp_options import Option, ParsedType, port

if TYPE_CHECKING:  # `--help` does not need it
    from koguma.dp.redirect_rules import NumberRange

_PORT_MAX: Final = 65535
_UID_MAX: Final = 2**32 - 2


def user(text: str) -> int:
    """The uid of a user, by name or number."""
    if text.isascii() and text.isdigit():
        return uid(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise ValueError("is no user of this machine") from None


def uid(text: str) -> int:
    """The number of a user."""
    if not (text.isascii() and text.isdigit() and int(text) <= _UID_MAX):
        raise ValueError(f"must be a number from 0 to {_UID_MAX}")
    return int(text)


def ports(text: str) -> "tuple[NumberRange, ...]":
    """Ports and ranges of ports."""
    return tuple(_range(part, 1, _PORT_MAX, "a port") for part in text.split(",") if part.strip())


def users(text: str) -> "tuple[NumberRange, ...]":
    """Users by name or number, and ranges of numbers."""
    from koguma.dp.redirect_rules import NumberRange  # noqa: PLC0415 - `--help` does not need it

    ranges = []
    for part in (part.strip() for part in text.split(",")):
        if part and not part.replace("-", "").isdigit():
            ranges.append(NumberRange(user(part), user(part)))
        elif part:
            ranges.append(_range(part, 0, _UID_MAX, "a uid"))
    return tuple(ranges)


def _range(text: str, least: int, most: int, what: str) -> "NumberRange":
    from koguma.dp.redirect_rules import NumberRange  # noqa: PLC0415 - `--help` does not need it

    first, dash, last = text.strip().partition("-")
    numbers = (first, last if dash else first)
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise ValueError(f"must be a list such as 22,9000-9100: {text.strip()!r} is not {what}")
    parsed = NumberRange(int(numbers[0]), int(numbers[1]))
    if not least <= parsed.first <= parsed.last <= most:
        raise ValueError(f"must be within {least} to {most}, in order; {text.strip()} is not")
    return parsed


def networks(text: str) -> tuple[str, ...]:
    """Addresses and networks."""
    parsed = []
    for part in (part.strip() for part in text.split(",")):
        try:
            parsed += [str(ipaddress.ip_network(part, strict=False))] if part else []
        except ValueError:
            raise ValueError(f"must be a list such as 10.0.0.0/8,192.0.2.1; {part!r} is no address") from None
    return tuple(parsed)


_PORT: Final = ParsedType("PORT", port)
_PORTS: Final = ParsedType("PORTS", ports)


def all_options() -> list[click.Parameter]:
    """The options, in the order of the help."""
    return [*_user_options(), *_redirection(), *_exclusions(), *_method()]


def _user_options() -> list[click.Parameter]:
    whose = "Whose calls pass"
    return [
        Option(
            whose,
            "--kuma-dp-user",
            "user",
            type=ParsedType("USER", user),
            help="The user that runs the proxy, by name or uid.  [default: koguma-dp or kuma-dp]",
        ),
        Option(whose, "--uid", type=ParsedType("UID", uid), help="The same, by uid."),
    ]


def _redirection() -> list[click.Parameter]:
    what = "What is redirected"
    return [
        Option(
            what,
            "--redirect-inbound/--no-redirect-inbound",
            default=True,
            help="TCP that arrives; on by default.",
        ),
        Option(
            what,
            "--redirect-inbound-port",
            "inbound_port",
            type=_PORT,
            default=15006,
            show_default=True,
            help="Where to.",
        ),
        Option(
            what,
            "--redirect-outbound-port",
            "outbound_port",
            type=_PORT,
            default=15001,
            show_default=True,
            help="Where TCP that leaves goes to.",
        ),
        Option(
            what,
            "--redirect-dns/--no-redirect-dns",
            default=True,
            help="DNS queries, UDP and TCP, to the name servers of /etc/resolv.conf; on by default.",
        ),
        Option(what, "--redirect-all-dns-traffic", "all_dns", is_flag=True, help="To any name server."),
        Option(
            what,
            *("--dns-port", "--redirect-dns-port"),
            type=_PORT,
            default=15053,
            show_default=True,
            help="Where queries go to; --dns-port of `koguma dp run`.",
        ),
        Option(
            what,
            *("--ip-family", "--ip-family-mode"),
            type=click.Choice(("dualstack", "ipv4")),
            default="dualstack",
            show_default=True,
            help="IPv4 and IPv6, or IPv4 only.",
        ),
    ]


def _exclusions() -> list[click.Parameter]:
    but = "What is not"
    return [
        Option(
            but,
            "--exclude-inbound-ports",
            "not_inbound_ports",
            type=_PORTS,
            multiple=True,
            help="Ports that are reached without the proxy: 22,9000-9100. Repeatable, as all of these.",
        ),
        Option(
            but,
            "--exclude-outbound-ports",
            "not_outbound_ports",
            type=_PORTS,
            multiple=True,
            help="Ports that are called without the proxy.",
        ),
        Option(
            but,
            *("--exclude-outbound-ips", "--exclude-outbound-cidrs"),
            "not_outbound_networks",
            type=ParsedType("CIDRS", networks),
            multiple=True,
            help="Addresses and networks that are called without the proxy: 10.0.0.0/8,192.0.2.1.",
        ),
        Option(
            but,
            "--exclude-outbound-uids",
            "not_uids",
            type=ParsedType("USERS", users),
            multiple=True,
            help="Users, by name or uid, whose calls and DNS queries pass: postgres,1000-1999.",
        ),
    ]


def _method() -> list[click.Parameter]:
    how = "How"
    return [
        Option(
            how,
            "--backend",
            type=click.Choice(("auto", "nft", "iptables", "iptables-legacy")),
            default="auto",
            show_default=True,
            help="The program that tells the kernel; auto is nft if there is one, else iptables.",
        ),
        Option(
            how,
            "--skip-dns-conntrack-zone-split",
            "skip_zone",
            is_flag=True,
            help="For kernels without zones of connection tracking; some queries may get lost then.",
        ),
        Option(how, "--dry-run", is_flag=True, help="Print the rules, and change nothing."),
    ]
