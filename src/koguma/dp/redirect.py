"""Redirect: installs the netfilter rules of the transparent proxy, or removes them.

The rules are in `redirect_rules`. This module finds nft or iptables, reads what is installed, and runs them.
Rules of an earlier install are replaced, with whichever program they were made.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from koguma.dp import redirect_iptables, redirect_nft
from koguma.dp.redirect_rules import OWN_CALLS_IPV6, RedirectSettings
from koguma.model.errors import KogumaError

AUTO: Final = "auto"
NFT: Final = "nft"
BACKENDS: Final = (NFT, "iptables", "iptables-legacy")

_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"  # not in the PATH of every user
_LEGACY: Final = "legacy"
_WAIT_SECONDS: Final = 5
_RUN_SECONDS: Final = 30
_NET_ADMIN: Final = 1 << 12
_SHOW_ADDRESS: Final = ("ip", "-6", "-o", "address", "show", "dev", "lo", "to", OWN_CALLS_IPV6)
# Deprecated from the start (preferred_lft 0), so that the kernel does not choose it as a source address.
_ADD_ADDRESS: Final = ("ip", "-6", "address", "replace", OWN_CALLS_IPV6, "dev", "lo", "preferred_lft", "0")
_DELETE_ADDRESS: Final = ("ip", "-6", "address", "delete", OWN_CALLS_IPV6, "dev", "lo")


class RedirectCommand(msgspec.Struct, frozen=True):
    """A command, and its standard input; `dry_run` is the command that only checks the script."""

    command: tuple[str, ...]
    script: str = ""
    dry_run: tuple[str, ...] = ()


def chosen(backend: str) -> str:
    """The program to use: the named one, or the first that is installed."""
    candidates = BACKENDS if backend == AUTO else (backend,)
    installed = next((name for name in candidates if _path(name)), "")
    if installed:
        return installed
    package = "nftables" if backend in (AUTO, NFT) else "iptables"
    what = "neither nft nor iptables is" if backend == AUTO else f"{backend} is not"
    raise KogumaError(f"{what} on this machine; install it, for example with `apt-get install {package}`")


def rendered(of: RedirectSettings, backend: str) -> str:
    """The commands of an install, for people; nothing is changed, and what is installed is not read."""
    name = next((program for program in BACKENDS if _path(program)), NFT) if backend == AUTO else backend
    address = [RedirectCommand(_ADD_ADDRESS)] if _needs_address(of) else []
    commands = [*address, *_commands(of, name)]
    return "".join(f"# {' '.join(command.command)}\n{command.script}" for command in commands)


def install(of: RedirectSettings, backend: str) -> str:
    """Install the rules, in place of an earlier install; returns the program that was used."""
    _require_net_admin()
    name = chosen(backend)
    saved = {program: _saved(program) for program in _programs(name)}
    commands = list(_commands(of, name, saved))
    for command in commands:
        _run(command.dry_run, command.script)
    _set_address(is_needed=_needs_address(of))
    for command in commands:
        _run(command.command, command.script)
    for command in _removals(but=name):
        _run(command.command, command.script)
    return name


def uninstall(*, is_dry: bool = False) -> list[RedirectCommand]:
    """Remove all our rules, with whichever program they were made; returns the commands."""
    _require_net_admin()
    if not any(_path(name) for name in BACKENDS):
        chosen(AUTO)
    commands = list(_removals())
    if _has_address():
        commands.append(RedirectCommand(_DELETE_ADDRESS))
    if not is_dry:
        for command in commands:
            _run(command.command, command.script)
    return commands


def _commands(
    of: RedirectSettings, backend: str, saved: dict[str, str] | None = None
) -> Iterator[RedirectCommand]:
    if backend == NFT:
        yield RedirectCommand((NFT, "-f", "-"), redirect_nft.text(of), (NFT, "-c", "-f", "-"))
        return
    for family, program in zip((4, 6), _programs(backend), strict=True):
        script = redirect_iptables.text(of, family, (saved or {}).get(program, ""))
        if script:
            yield _restore_command(program, script)


def _restore_command(program: str, script: str) -> RedirectCommand:
    command = (f"{program}-restore", "--noflush", "--wait", str(_WAIT_SECONDS))
    return RedirectCommand(command, script, (*command, "--test"))


def _programs(backend: str) -> tuple[str, ...]:
    """The programs of a backend for IPv4 and IPv6."""
    return () if backend == NFT else (backend, backend.replace("ip", "ip6", 1))


def _removals(but: str = "") -> Iterator[RedirectCommand]:
    """The commands that remove our installed rules, except those of one backend."""
    if but != NFT and _path(NFT) and _output((NFT, "list", "table", *redirect_nft.TABLE.split())) is not None:
        yield RedirectCommand((NFT, "-f", "-"), redirect_nft.removal())
    done = {_variant(program) for program in _programs(but)} if but else set()
    for program in (program for name in BACKENDS for program in _programs(name)):
        if _path(program) and _variant(program) not in done:
            done.add(_variant(program))
            script = redirect_iptables.removal(_saved(program))
            if script:
                yield _restore_command(program, script)


def _variant(program: str) -> tuple[str, bool]:
    """The family of a program, and whether it is the legacy one: `iptables` may be a link to either."""
    real = Path(_path(f"{program}-save") or program).resolve().name
    return "ip6" if program.startswith("ip6") else "ip", _LEGACY in real


def _saved(program: str) -> str:
    """The output of iptables-save for our tables; only loaded ones, as the legacy program would load them."""
    family, is_legacy = _variant(program)
    if not _path(f"{program}-save"):
        return ""
    names = Path(f"/proc/net/{family}_tables_names")
    loaded = names.read_text(encoding="ascii").split() if is_legacy and names.exists() else []
    tables = [table for table in redirect_iptables.TABLES if table in loaded or not is_legacy]
    return "".join(_output((f"{program}-save", "-t", table)) or "" for table in tables)


def _needs_address(of: RedirectSettings) -> bool:
    return of.has_ipv6 and bool(of.inbound_port)


def _has_address() -> bool:
    return bool(_path("ip") and _output(_SHOW_ADDRESS))


def _set_address(*, is_needed: bool) -> None:
    """Add or remove the IPv6 source address of the proxy's calls to its own service.

    For IPv4 the whole of 127.0.0.0/8 is local; for IPv6 only ::1 is, so an address is added to `lo`.
    """
    if is_needed and not _path("ip"):
        hint = "install it, for example with `apt-get install iproute2`, or choose --ip-family ipv4"
        raise KogumaError(f"ip is not on this machine, and IPv6 needs it; {hint}")
    if is_needed:
        _run(_ADD_ADDRESS)
    elif _has_address():
        _run(_DELETE_ADDRESS)


def _require_net_admin() -> None:
    """Fail early with a clear reason, where this process lacks the capability NET_ADMIN."""
    status = Path("/proc/self/status")
    capabilities = (
        re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE) if status.exists() else None
    )
    if capabilities is None:
        raise KogumaError("a transparent proxy needs Linux: there the kernel redirects traffic")
    if not int(capabilities[1], 16) & _NET_ADMIN:
        raise KogumaError(
            "not allowed to change how the kernel redirects traffic: run it as root, and in a container with"
            " the capability NET_ADMIN"
        )


def _path(program: str) -> str:
    """The path of an installed program; empty where it is not installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), _SYSTEM_PATH))
    return shutil.which(program, path=path) or ""


def _completed(command: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
    program = _path(command[0])
    try:
        return subprocess.run(  # noqa: S603 - a system program, with arguments of ours
            [program or command[0], *command[1:]],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=_RUN_SECONDS,
        )
    except OSError as error:
        raise KogumaError(f"{command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise KogumaError(f"{command[0]} did not end within {_RUN_SECONDS} s") from None


def _run(command: tuple[str, ...], script: str = "") -> None:
    process = _completed(command, script)
    if process.returncode:
        errors = "; ".join(line.strip() for line in process.stderr.splitlines() if line.strip())
        raise KogumaError(f"`{' '.join(command)}` failed: {errors or f'exit code {process.returncode}'}")


def _output(command: tuple[str, ...]) -> str | None:
    """The standard output of a command; None where it fails."""
    process = _completed(command, "")
    return None if process.returncode else process.stdout
