"""`koguma dp install` and `koguma dp uninstall`: the kernel's redirection of traffic to the proxy."""

import ipaddress
import pwd
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from koguma.cli import terminal
from koguma.cli.dp_install_options import all_options
from koguma.cli.dp_options import SectionedCommand
from koguma.cli.failures import CommandFailure, ExitCode

if TYPE_CHECKING:  # `--help` does not need them
    from koguma.dp.redirect_rules import NumberRange, RedirectSettings

_USERS: Final = ("koguma-dp", "kuma-dp")
_MAKE_USER: Final = "useradd --system --no-create-home --shell /usr/sbin/nologin koguma-dp"
_EXAMPLES: Final = f"""\b
Examples:
  {_MAKE_USER}
  koguma dp install transparent-proxy --kuma-dp-user koguma-dp --exclude-inbound-ports 22 --dry-run
  koguma dp install transparent-proxy --kuma-dp-user koguma-dp --exclude-inbound-ports 22
  runuser -u koguma-dp -- koguma dp run --transparent-proxy --name web-1 --service web --port 8080 \\
      --address 10.0.0.7 --cp-address https://10.0.0.2:5678 --ca-cert-file ca.pem \\
      --dataplane-token-file web-1.token
  koguma dp uninstall transparent-proxy
"""


@click.group("install")
def install_group() -> None:
    """Let the kernel send traffic through the proxy."""


@click.group("uninstall")
def uninstall_group() -> None:
    """Take out what `koguma dp install` put in."""


def install(**flags: Any) -> int:
    """Let the kernel redirect all TCP traffic of this machine, and its DNS queries, to the proxy.

    Services need no change then: they call each other by name, and everything that arrives or leaves goes
    through the Envoy that `koguma dp run --transparent-proxy` runs, as a user of its own, whose calls alone
    are not redirected. Installing again replaces what is there, at once.

    On a machine that you reach over SSH, exclude its port: --exclude-inbound-ports 22.
    """
    from koguma.dp import redirect  # noqa: PLC0415 - `--help` does not need it

    settings = _settings(flags)
    if flags["dry_run"]:
        print(redirect.rendered(settings, flags["backend"]), end="")
        return ExitCode.FINE
    used = redirect.install(settings, flags["backend"])
    for line in _summary(settings):
        print(line)
    print(f"made with {used}; `koguma dp uninstall transparent-proxy` removes it")
    if settings.proxy_uid == 0:
        terminal.print_stderr("warning: the proxy is root, so nothing that root runs is redirected")
    return ExitCode.FINE


def uninstall(*, dry_run: bool) -> int:
    """Remove the redirection from this machine: exactly what `koguma dp install transparent-proxy` made."""
    from koguma.dp import redirect  # noqa: PLC0415 - `--help` does not need it

    commands = redirect.uninstall(is_dry=dry_run)
    if dry_run:
        for command in commands:
            print(f"# {' '.join(command.command)}\n{command.script}", end="")
    elif commands:
        print("nothing is redirected any more")
    else:
        print("there was nothing to remove")
    return ExitCode.FINE


def _summary(settings: "RedirectSettings") -> list[str]:
    families = "IPv4 and IPv6" if settings.has_ipv6 else "IPv4"
    excluded = settings.not_inbound_ports
    but = f", but for ports {_listed(excluded)}" if excluded else ""
    inbound, outbound = settings.inbound_port, settings.outbound_port
    lines = [f"{families}: TCP that arrives goes to port {inbound}{but}"] if inbound else []
    lines.append(
        f"{families}: TCP that leaves goes to port {outbound}, but for that of uid {settings.proxy_uid}"
    )
    if settings.dns_port:
        servers = "" if settings.dns_servers is None else f" to {', '.join(settings.dns_servers)}"
        lines.append(f"DNS queries{servers} go to port {settings.dns_port}")
    return lines


def _listed(ranges: "tuple[NumberRange, ...]") -> str:
    return ", ".join(
        str(ports.first) if ports.first == ports.last else f"{ports.first}-{ports.last}" for ports in ranges
    )


def _settings(flags: Mapping[str, Any]) -> "RedirectSettings":
    from koguma.dp import machine  # noqa: PLC0415 - `--help` does not need it
    from koguma.dp.redirect_rules import RedirectSettings  # noqa: PLC0415 - the same

    has_ipv6 = flags["ip_family"] == "dualstack"
    if has_ipv6 and not machine.has_ipv6():
        terminal.print_stderr("note: this machine has no IPv6, so only IPv4 is redirected")
        has_ipv6 = False
    return RedirectSettings(
        proxy_uid=_proxy_uid(flags["user"], flags["uid"]),
        inbound_port=flags["inbound_port"] if flags["redirect_inbound"] else 0,
        outbound_port=flags["outbound_port"],
        dns_port=flags["dns_port"] if flags["redirect_dns"] else 0,
        dns_servers=None if flags["all_dns"] else _name_servers(),
        has_dns_zone=not flags["skip_zone"],
        not_inbound_ports=_joined(flags["not_inbound_ports"]),
        not_outbound_ports=_joined(flags["not_outbound_ports"]),
        not_outbound_networks=_joined(flags["not_outbound_networks"]),
        not_uids=_joined(flags["not_uids"]),
        has_ipv6=has_ipv6,
    )


def _joined(occurrences: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    """The values of a repeatable option, of all its occurrences."""
    return tuple(dict.fromkeys(value for values in occurrences for value in values))


def _name_servers() -> tuple[str, ...]:
    """The name servers of this machine.

    Where one of them runs on this machine, only that one: its own queries to others must not be redirected,
    or they would come back to it.
    """
    from koguma.dp import machine  # noqa: PLC0415 - `--help` does not need it
    from koguma.dp.dns_message import upstreams_of  # noqa: PLC0415 - the same

    all_servers = [address.partition("%")[0] for address, _ in upstreams_of(machine.resolv_conf())]
    local = [address for address in all_servers if ipaddress.ip_address(address).is_loopback]
    return tuple(local or all_servers)


def _proxy_uid(user: int | None, uid: int | None) -> int:
    if user is not None and uid is not None and user != uid:
        raise click.UsageError(f"--kuma-dp-user is uid {user}, and --uid is {uid}; give one of them")
    chosen = uid if user is None else user
    for name in () if chosen is not None else _USERS:
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    if chosen is None:
        raise CommandFailure(
            "say as whom the proxy runs, with --kuma-dp-user or --uid: its own calls must not be redirected",
            (f" - to make such a user: {_MAKE_USER}",),
            ExitCode.USAGE,
        )
    return chosen


install_group.add_command(
    SectionedCommand(
        "transparent-proxy", params=all_options(), callback=install, help=install.__doc__, epilog=_EXAMPLES
    )
)
uninstall_group.add_command(
    click.Command(
        "transparent-proxy",
        params=[
            click.Option(["--dry-run"], is_flag=True, help="Print what would be done, and change nothing.")
        ],
        callback=uninstall,
        help=uninstall.__doc__,
    )
)
