"""`koguma dp`: run a proxy, which is an Envoy with the agent that supervises it."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO
from urllib.parse import urlsplit

import click

from koguma.cli import dp_install, target, terminal
from koguma.cli.dp_options import ADDRESSES_MAX, SectionedCommand, all_options
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.identity import proxy_types
from koguma.model.redacted import Redacted

if TYPE_CHECKING:  # `--help` does not need the kinds, HTTP and Envoy
    from koguma.dp.dataplane import DataplaneProxy
    from koguma.dp.observability import MetricsCertificate
    from koguma.dp.run import RunOptions

_ABOUT_TOKEN: Final = (400, 401, 403, 422)  # statuses that a missing token may cause
_EXAMPLES: Final = """\b
Examples:
  koguma token dataplane --name web-1 --service web --valid-for 720h > web-1.token
  koguma dp run --name web-1 --service web --port 8080 --service-port 18080 --protocol http \\
      --outbound backend:9001 --dataplane-token-file web-1.token
  koguma dp run --dataplane-file backend.yaml --dataplane-var ip=10.0.0.7 \\
      --cp-address https://10.0.0.2:5678 --ca-cert-file ca.pem --dataplane-token-file backend.token
  koguma dp run --name web-1 --service web --port 8080 --ca-cert-file ca.pem \\
      --cp-address https://10.0.0.2:5678,https://10.0.0.3:5678 --dataplane-token-file web-1.token
  koguma token dataplane --mesh shop --name edge-1 --service edge --valid-for 720h > edge-1.token
  koguma dp run --gateway --name edge-1 --mesh shop --tag kuma.io/service=edge --address 10.0.0.4 \\
      --dataplane-token-file edge-1.token
  koguma token zone --zone east --scope egress --valid-for 720h > egress.token
  koguma dp run --proxy-type egress --name egress-1 --address 10.0.0.3 --port 10002 \\
      --dataplane-token-file egress.token
  koguma token zone --zone east --scope ingress --valid-for 720h > ingress.token
  koguma dp run --proxy-type ingress --name ingress-1 --address 10.0.0.2 --port 10001 \\
      --dataplane-token-file ingress.token
"""


@click.group("dp")
def command() -> None:
    """Run a proxy beside a service, a gateway, or the egress or ingress of a zone."""


def run(**flags: Any) -> int:
    """Run an Envoy beside a service, or as a gateway, until it is stopped.

    The proxy registers its Dataplane with the control plane, gets all its configuration from there, and is
    started again when it crashes. SIGTERM and Ctrl-C take it out of the mesh and let calls under way end; a
    second signal ends it at once.
    """
    import asyncio  # noqa: PLC0415 - `--help` needs none of this

    from koguma.dp import run as agent  # noqa: PLC0415 - the same
    from koguma.dp.control_plane import ControlPlaneDenied  # noqa: PLC0415 - the same
    from koguma.runtime import logs  # noqa: PLC0415 - the same

    _become(flags["user"] or "")
    options = _options(flags)
    _check_root(flags["user"] or "", is_transparent=options.proxy.is_transparent)
    logs.configure(flags["log_level"], flags["log_format"])
    try:
        return asyncio.run(agent.serve(options, lambda line: print(line, flush=True)))
    except ControlPlaneDenied as denied:
        is_about_token = denied.http_status in _ABOUT_TOKEN and options.token() is None
        hints = _token_hints(options.proxy) if is_about_token else ()
        raise CommandFailure(denied.detail, hints) from None


def _become(user: str) -> None:
    """Become the user of --user, before any file is read or any process started."""
    from koguma.dp import privileges  # noqa: PLC0415 - `--help` does not need it

    if user:
        privileges.become(privileges.find_account(user))


def _check_root(user: str, *, is_transparent: bool) -> None:
    """Refuse what cannot work as root, and warn of the rest: policies can reach whatever Envoy can.

    With an explicit `--user root` only the warning about redirection loops remains.
    """
    if os.geteuid() != 0 or (user and not is_transparent):
        return
    if is_transparent and not user:
        raise click.UsageError(
            "root starts this proxy, and the kernel would send root's calls back to it: say with --user who"
            " it is to be, the user that `koguma dp install transparent-proxy` was given; --user root stays"
            " root"
        )
    exempted = "`koguma dp install transparent-proxy --uid 0`"
    loops = f"; its own calls go in circles unless they were exempted with {exempted}"
    terminal.print_stderr(
        "warning: the proxy runs as root, and so does all that its Envoy reads and writes; give it a user of"
        f" its own with --user{loops if is_transparent else ''}"
    )


def _token_hints(proxy: "DataplaneProxy") -> tuple[str, ...]:
    name = proxy.name
    bindings = " ".join((f"--name {name}", *(f"--service {service}" for service in proxy.services)))
    what = f"dataplane --mesh {proxy.mesh} {bindings}"
    if proxy.type.is_of_zone:
        what = f"zone --zone ZONE --scope {proxy.type.scope}"
    return (
        " - no token was given; make one, and start again with it:",
        f"   koguma token {what} --valid-for 720h > {name}.token",
        f"   koguma dp run ... --dataplane-token-file {name}.token",
    )


def _options(flags: Mapping[str, Any]) -> "RunOptions":
    from koguma.dp.bootstrap import LOG_DIRECTORIES  # noqa: PLC0415 - `--help` needs none of this
    from koguma.dp.envoy import EnvoySettings  # noqa: PLC0415 - the same
    from koguma.dp.run import RunOptions  # noqa: PLC0415 - the same
    from koguma.envoy import schema  # noqa: PLC0415 - the same

    proxy = _proxy(flags)
    uses_names = flags["bind_outbounds"] or proxy.is_transparent
    addresses = _addresses(flags["cp_addresses"])
    return RunOptions(
        proxy=proxy,
        addresses=addresses,
        ca_file=_ca_file(addresses, flags["ca_cert_file"] or ""),
        token=partial(
            _reread_token, _token(flags["dataplane_token_file"] or "", flags["dataplane_token"] or "")
        ),
        envoy=EnvoySettings(
            binary=schema.find_envoy(flags["envoy_path"] or "").absolute(),
            drain_seconds=flags["drain_time"],
            concurrency=flags["concurrency"] or 0,
            log_level=flags["envoy_log_level"],
        ),
        workdir=flags["workdir"] or "",
        bind_outbounds=flags["bind_outbounds"],
        has_dns=uses_names if flags["dns"] is None else flags["dns"],
        dns_port=flags["dns_port"],
        dns_upstreams=tuple(flags["dns_upstreams"]),
        readiness_port=flags["readiness_port"],
        memory_bytes_max=flags["memory_limit"] or 0,
        metrics_certificate=_metrics_certificate(flags["metrics_cert_file"], flags["metrics_key_file"]),
        log_directories=tuple(flags["log_directories"]) or LOG_DIRECTORIES,
        allows_data_sources=flags["allow_proxy_data_sources"],
    )


def _metrics_certificate(chain: str | None, key: str | None) -> "MetricsCertificate | None":
    from koguma.dp.observability import MetricsCertificate  # noqa: PLC0415 - `--help` does not need it

    if bool(chain) != bool(key):
        raise click.UsageError("--metrics-cert-file and --metrics-key-file go together")
    return MetricsCertificate(chain, key) if chain and key else None


def _proxy(flags: Mapping[str, Any]) -> "DataplaneProxy":
    from koguma.dp import dataplane, gateway  # noqa: PLC0415 - `--help` does not need the kinds

    file: TextIO | None = flags["dataplane_file"]
    possible = {**dataplane.FLAG_NAMES, **dataplane.INGRESS_FLAG_NAMES}
    described = {name: flags[name] for name in possible if flags[name]}
    _refuse_flags_of_ingresses(described, flags["proxy_type"])
    _refuse_contradictions(file, described, flags["variables"])
    _refuse_flags_of_sidecars(described, flags)
    ports = _redirect_ports(flags)
    try:
        if file is None:
            proxy = _described(flags, described, is_redirected=bool(ports and ports[0]))
        else:
            proxy_type = proxy_types.SERVED[flags["proxy_type"]]
            proxy = dataplane.from_file(file.read(), dict(flags["variables"]), file.name, proxy_type)
            if flags["gateway"]:
                gateway.check_file(proxy, file.name)
        return dataplane.redirected(proxy, *ports) if ports else proxy
    except dataplane.BadDataplane as error:
        raise click.UsageError(error.detail) from None
    except UnicodeDecodeError:
        raise click.UsageError(f"--dataplane-file: {flags['dataplane_file'].name} is no text") from None


def _described(
    flags: Mapping[str, Any], described: Mapping[str, Any], *, is_redirected: bool
) -> "DataplaneProxy":
    """The proxy that flags describe, of one of three sorts."""
    from koguma.dp import dataplane, gateway, zone_proxy  # noqa: PLC0415 - `--help` does not need the kinds

    proxy_type = proxy_types.SERVED[flags["proxy_type"]]
    fields = {**described, "labels": dict(described.get("labels", ()))}
    if proxy_type.is_of_zone:
        return zone_proxy.from_flags(proxy_type, zone_proxy.ZoneProxyFlags(**fields))
    fields["tags"] = dict(described.get("tags", ()))
    if flags["gateway"]:
        return gateway.from_flags(gateway.GatewayFlags(**fields))
    return dataplane.from_flags(dataplane.DataplaneFlags(is_redirected=is_redirected, **fields))


def _refuse_flags_of_ingresses(described: Mapping[str, Any], proxy_type: str) -> None:
    from koguma.dp import dataplane  # noqa: PLC0415 - `--help` does not need the kinds

    names = [flag for name, flag in dataplane.INGRESS_FLAG_NAMES.items() if name in described]
    if names and proxy_type != proxy_types.INGRESS.word:
        raise click.UsageError(f"{', '.join(names)}: only an ingress is called from other zones")


def _refuse_flags_of_sidecars(described: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    """Refuse flags that other proxies have no use for: they have no inbounds, and call nobody by name."""
    from koguma.dp import dataplane, gateway, zone_proxy  # noqa: PLC0415 - `--help` does not need the kinds

    zone_type = f"--proxy-type {flags['proxy_type']}"
    is_of_zone = proxy_types.SERVED[flags["proxy_type"]].is_of_zone
    if is_of_zone and flags["gateway"]:
        raise click.UsageError(
            f"--gateway is a proxy of a mesh, {zone_type} one of a zone; give one of the two"
        )
    if not is_of_zone and not flags["gateway"]:
        return
    allowed, what = (zone_proxy.FLAG_NAMES, zone_type) if is_of_zone else (gateway.FLAG_NAMES, "--gateway")
    names = [dataplane.FLAG_NAMES[name] for name in described if name not in allowed]
    switches = (
        "bind_outbounds",
        "transparent_proxy",
        "dns",
        "redirect_inbound_port",
        "redirect_outbound_port",
    )
    names += [f"--{name.replace('_', '-')}" for name in switches if flags[name]]
    if names:
        raise click.UsageError(f"{', '.join(names)}: only a sidecar has it, not {what}")


def _redirect_ports(flags: Mapping[str, Any]) -> tuple[int, int] | None:
    """The ports that the kernel redirects to; None where it does not."""
    from koguma.dp.redirect_rules import INBOUND_PORT, OUTBOUND_PORT  # noqa: PLC0415 - only `run` needs it

    inbound, outbound = flags["redirect_inbound_port"], flags["redirect_outbound_port"]
    if flags["transparent_proxy"]:
        return INBOUND_PORT if inbound is None else inbound, outbound or OUTBOUND_PORT
    if inbound is not None or outbound is not None:
        raise click.UsageError(
            "--redirect-inbound-port and --redirect-outbound-port go with --transparent-proxy"
        )
    return None


def _refuse_contradictions(file: TextIO | None, described: Mapping[str, Any], variables: Any) -> None:
    from koguma.dp import dataplane  # noqa: PLC0415 - `--help` does not need the kinds

    if file is not None and described:
        possible = {**dataplane.FLAG_NAMES, **dataplane.INGRESS_FLAG_NAMES}
        names = ", ".join(possible[name] for name in described)
        raise click.UsageError(f"--dataplane-file says all that {names} would say; give one or the other")
    if file is None and variables:
        raise click.UsageError("--dataplane-var goes with --dataplane-file")
    if file is None and "name" not in described:
        raise click.UsageError(
            "say who the proxy is: --name with --service, --dataplane-file, or --name alone for a Dataplane"
            " that is stored already; --gateway with --name and --tag for a gateway; --name with --port for a"
            " zone egress or ingress"
        )


def _addresses(given: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The addresses of control planes, each once."""
    addresses = tuple(dict.fromkeys(_address(text) for texts in given for text in texts))
    if len(addresses) > ADDRESSES_MAX:
        raise CommandFailure(
            f"--cp-address: there are {len(addresses)} addresses, and {ADDRESSES_MAX} at most; a name may"
            " have more",
            code=ExitCode.USAGE,
        )
    return addresses


def _address(address: str) -> str:
    checked = target.checked_address(address, "--cp-address")
    if not checked.startswith("https://"):
        raise CommandFailure(
            f'--cp-address: "{address}" must be https://HOST:PORT, so that nobody reads the token on its way',
            code=ExitCode.USAGE,
        )
    return checked


def _ca_file(addresses: tuple[str, ...], configured: str) -> str:
    """The CA of the control planes: the configured one, or that of a data directory where all run here."""
    from koguma.identity import files  # noqa: PLC0415 - the same
    from koguma.runtime import settings  # noqa: PLC0415 - `--help` does not need it

    if configured:
        return str(Path(configured).expanduser())
    hosts = [urlsplit(address).hostname or "" for address in addresses]
    elsewhere = next((host for host in hosts if not target.is_loopback(host)), None)
    if elsewhere is not None:
        raise CommandFailure(
            f"the control plane at {elsewhere} is on another machine, so its CA is needed: copy ca.pem from"
            " its data directory, and give it with --ca-cert-file",
            code=ExitCode.USAGE,
        )
    environment = {name: os.environ[name] for name in ("KOGUMA_DATA_DIR",) if name in os.environ}
    own_ca = Path(settings.load(None, environment, {}).data_dir) / files.CA
    return str(own_ca) if os.access(own_ca, os.R_OK) else ""


def _token(file: str, text: str) -> Callable[[], Redacted | None]:
    """A function that reads the token; a file is also read now, so that a mistake fails at once."""
    if file:
        target.read_token(file, "--dataplane-token-file")
        return lambda: target.read_token(file, "--dataplane-token-file")
    token = Redacted(text.strip()) if text.strip() else None
    return lambda: token


def _reread_token(read: Callable[[], Redacted | None]) -> Redacted | None:
    """The token, for the running agent: KogumaError where it cannot be read now."""
    from koguma.model.errors import KogumaError  # noqa: PLC0415 - `--help` does not need it

    try:
        return read()
    except CommandFailure as failure:
        raise KogumaError(failure.message) from None


command.add_command(
    SectionedCommand("run", params=all_options(), callback=run, help=run.__doc__, epilog=_EXAMPLES)
)
command.add_command(dp_install.install_group)
command.add_command(dp_install.uninstall_group)
