"""`koguma kubeconfig`: writes a kubeconfig, with which kubectl and other clients talk to a control plane.

Go's Kubernetes clients send a token over TLS only, so the server is always the https port. The same address,
CA and token are tried before the file is written.
"""

import base64
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from koguma.cli import kubeconfig_file, options, target, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, CommandFailure, ExitCode, ServerUnreachable
from koguma.cli.kubeconfig_file import KubeconfigEntry
from koguma.cli.target import HTTPS_PORT, ServerTarget
from koguma.identity import files
from koguma.model import forms
from koguma.model.redacted import Redacted
from koguma.runtime import data_directory

Json = Any

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_NAMES_HINT: Final = (
    " - its own certificate is for localhost and its host name; `koguma cp run --hostnames NAME` adds others"
)
_STDOUT: Final = "-"

_EXAMPLES = """\b
Examples:
  koguma kubeconfig --merge && kubectl get meshtimeouts
  koguma kubeconfig -o shop.kubeconfig --mesh shop
  koguma kubeconfig --context prod --name prod --merge --keep-current
"""


@click.command("kubeconfig", epilog=_EXAMPLES)
@click.option("--name", default="koguma", show_default=True, help="Name of the cluster, user and context.")
@options.mesh
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the context instead of the mesh's own, mesh-MESH."
)
@click.option("-o", "--output", metavar="FILE", help="File to write, mode 0600; - is standard output.")
@click.option(
    "--merge", is_flag=True, help="Add to FILE, else to the file of KUBECONFIG, else to ~/.kube/config."
)
@click.option("--keep-current", is_flag=True, help="Leave the file's current context as it is.")
@click.option("--ca-cert", metavar="FILE", help="CA (PEM) to write, where it is not that of --ca-file.")
@options.connected
def command(  # noqa: PLR0913 - click hands over each option by itself
    client: ApiClient,
    *,
    name: str,
    mesh: str,
    namespace: str | None,
    output: str | None,
    merge: bool,
    keep_current: bool,
    ca_cert: str | None,
) -> None:
    """Write a kubeconfig, for kubectl and its relatives.

    It holds the https port of the control plane, its CA and a token, which are tried first. The token is
    the one that the other commands would send; without one, and on the control plane's own machine, it is
    the administrator's. It is printed only as a part of the file, and masked on a terminal unless you say
    -o -.
    """
    if merge and output == _STDOUT:
        raise click.UsageError("--merge writes a file; leave out one of --merge and -o -")
    server = _https_target(client, ca_cert or "")
    _check(server, mesh if namespace is None else None)
    assert server.token is not None
    context_namespace = forms.reserved_namespace(mesh) if namespace is None else namespace
    entry = KubeconfigEntry(name, server.address, _ca_data(server.ca_file), server.token, context_namespace)
    file = _file(output, merge=merge)
    if file is None:
        _print(entry, keep_current=keep_current, reveal=output == _STDOUT or not sys.stdout.isatty())
        return
    save = kubeconfig_file.merge if merge else kubeconfig_file.write
    save(file, entry, keep_current=keep_current)
    current = "" if keep_current else ", and current there"
    print(f'context "{name}" written to {file}{current}: {entry.server}, namespace {context_namespace}')


def _file(output: str | None, *, merge: bool) -> Path | None:
    """The file to write; None for standard output."""
    if output is None:
        return kubeconfig_file.default_path(os.environ) if merge else None
    return None if output == _STDOUT else Path(output).expanduser()


def _print(entry: KubeconfigEntry, *, keep_current: bool, reveal: bool) -> None:
    shown = entry if reveal else entry._replace(token=Redacted(kubeconfig_file.MASK))
    print(kubeconfig_file.text(kubeconfig_file.content({}, shown, keep_current=keep_current)), end="")
    if not reveal:
        terminal.print_stderr("the token is masked; -o FILE and --merge write it, -o - shows it")


def _https_target(client: ApiClient, ca_cert: str) -> ServerTarget:
    """The https port of the control plane, with a CA and a token for it."""
    known = client.target
    config = {} if known.is_https else _settings(client)
    address = known.address if known.is_https else _https_address(known.host, config.get("apiTlsPort"))
    data_dir = _data_dir(known, config) if target.is_loopback(known.host) else None
    ca_file = ca_cert or known.ca_file or _own_ca(data_dir, config)
    return ServerTarget(address, known.origin, known.token or _admin_token(data_dir), ca_file)


def _settings(client: ApiClient) -> Mapping[str, Json]:
    try:
        return client.get("/config").object
    except ApiError as error:
        raise CommandFailure(
            f"the control plane does not tell its https port: {error.message}",
            (f" - name the port: --address https://{client.target.host}:{HTTPS_PORT}",),
            error.code,
        ) from None


def _https_address(host: str, port: Json) -> str:
    if not isinstance(port, int) or not port:
        raise CommandFailure(
            "the control plane names no https port, and kubectl sends tokens over https only",
            (f" - name the port: --address https://HOST:{HTTPS_PORT}",),
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _data_dir(known: ServerTarget, config: Mapping[str, Json]) -> Path:
    """Where a control plane on this machine keeps its CA and the administrator's token."""
    configured = Path(str(config.get("dataDir") or ""))
    is_chosen = Path(known.data_dir) != data_directory.default(os.environ)
    return configured if configured.is_absolute() and not is_chosen else Path(known.data_dir)


def _own_ca(data_dir: Path | None, config: Mapping[str, Json]) -> str:
    """The CA in the data directory, unless the control plane has a certificate of another CA."""
    file = data_dir / files.CA if data_dir is not None and not config.get("tlsCertFile") else None
    return str(file) if file is not None and os.access(file, os.R_OK) else ""


def _admin_token(data_dir: Path | None) -> Redacted:
    file = data_dir / files.ADMIN_TOKEN if data_dir is not None else None
    if file is not None and os.access(file, os.R_OK):
        return target.read_token(str(file), "the administrator's token")
    where = f", and {file} cannot be read" if file is not None else ""
    raise CommandFailure(
        f"a kubeconfig needs a token: none is given{where}",
        (
            " - issue one: `koguma token user --name NAME --group GROUP --valid-for 720h > FILE`",
            " - then give --token-file FILE, or keep it in a context with `koguma config add`",
        ),
        ExitCode.USAGE,
    )


def _check(server: ServerTarget, mesh: str | None) -> None:
    """Try address, CA and token together, and check that the mesh exists."""
    with contextlib.closing(ApiClient(server)) as client:
        try:
            client.get("/who-am-i")
            if mesh is not None:
                client.get(f"/meshes/{quote(mesh, safe='')}")
        except ServerUnreachable as failure:
            failure.lines = (*failure.lines, _NAMES_HINT)
            raise
        except ApiError as error:
            if error.status == _NOT_FOUND:
                error.lines = (
                    *error.lines,
                    " - choose with --mesh, or name a namespace with --namespace",
                )
            elif mesh is None or error.status != _FORBIDDEN:
                error = error.about(f"{server.address} with the token for the kubeconfig")
            else:
                return  # who may not read the mesh may still read what is in it
            raise error from None


def _ca_data(file: str) -> str:
    if not file:
        return ""
    try:
        return base64.b64encode(Path(file).expanduser().read_bytes()).decode()
    except OSError as error:
        raise CommandFailure(
            f"the CA file {file} cannot be read: {error.strerror}", code=ExitCode.USAGE
        ) from None
