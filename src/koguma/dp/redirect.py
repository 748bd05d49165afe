"""Redirect: puts the rules that send a machine's traffic through its proxy into the kernel, or removes them.

The rules themselves are `redirect_rules`. Here the programs that know the kernel are found, asked what is
there, and run. Whatever was ours before, made with whichever program, is replaced.
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
from koguma.dp.redirect_rules import OWN_CALLS_IPV6, Settings
from koguma.model.errors import KogumaError

AUTO: Final = "auto"
NFT: Final = "nft"
BACKENDS: Final = (NFT, "iptables", "iptables-legacy")

_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"  # not everybody's PATH has them
_LEGACY: Final = "legacy"
_WAIT_SECONDS: Final = 5
_RUN_SECONDS: Final = 30
_NET_ADMIN: Final = 1 << 12
_SHOW_ADDRESS: Final = ("ip", "-6", "-o", "address", "show", "dev", "lo", "to", OWN_CALLS_IPV6)
# Deprecated from the start, so that nobody takes it for a call of his own.
_ADD_ADDRESS: Final = ("ip", "-6", "address", "replace", OWN_CALLS_IPV6, "dev", "lo", "preferred_lft", "0")
_DELETE_ADDRESS: Final = ("ip", "-6", "address", "delete", OWN_CALLS_IPV6, "dev", "lo")


class Step(msgspec.Struct, frozen=True):
    """A command, and what it reads; `checked` is the same without effect."""

    command: tuple[str, ...]
    script: str = ""
    checked: tuple[str, ...] = ()


def chosen(backend: str) -> str:
    """The program to use: the named one, or the first that is here."""
    names = BACKENDS if backend == AUTO else (backend,)
    found = next((name for name in names if _found(name)), "")
    if found:
        return found
    package = "nftables" if backend in (AUTO, NFT) else "iptables"
    what = "neither nft nor iptables is" if backend == AUTO else f"{backend} is not"
    raise KogumaError(f"{what} on this machine; install it, for example with `apt-get install {package}`")


def rendered(of: Settings, backend: str) -> str:
    """All that installing would do, for people; nothing is changed, and what is there is not looked at."""
    name = next((each for each in BACKENDS if _found(each)), NFT) if backend == AUTO else backend
    steps = [Step(_ADD_ADDRESS), *_steps(of, name)] if _needs_address(of) else _steps(of, name)
    return "".join(f"# {' '.join(step.command)}\n{step.script}" for step in steps)


def install(of: Settings, backend: str) -> str:
    """Put the rules in place of whatever rules of ours there are; which program was used."""
    _require_power()
    name = chosen(backend)
    saved = {program: _saved(program) for program in _programs(name)}
    steps = list(_steps(of, name, saved))
    for step in steps:
        _run(step.checked, step.script)
    _keep_address(is_wanted=_needs_address(of))
    for step in steps:
        _run(step.command, step.script)
    for step in _leftovers(but=name):
        _run(step.command, step.script)
    return name


def uninstall(*, is_dry: bool = False) -> list[Step]:
    """Take out all that is ours, whichever program put it there; what was done, or would be."""
    _require_power()
    if not any(_found(name) for name in BACKENDS):
        chosen(AUTO)
    steps = list(_leftovers())
    if _has_address():
        steps.append(Step(_DELETE_ADDRESS))
    if not is_dry:
        for step in steps:
            _run(step.command, step.script)
    return steps


def _steps(of: Settings, backend: str, saved: dict[str, str] | None = None) -> Iterator[Step]:
    if backend == NFT:
        yield Step((NFT, "-f", "-"), redirect_nft.text(of), (NFT, "-c", "-f", "-"))
        return
    for family, program in zip((4, 6), _programs(backend), strict=True):
        script = redirect_iptables.text(of, family, (saved or {}).get(program, ""))
        if script:
            yield _restoring(program, script)


def _restoring(program: str, script: str) -> Step:
    command = (f"{program}-restore", "--noflush", "--wait", str(_WAIT_SECONDS))
    return Step(command, script, (*command, "--test"))


def _programs(backend: str) -> tuple[str, ...]:
    """The programs of a backend for IPv4 and IPv6."""
    return () if backend == NFT else (backend, backend.replace("ip", "ip6", 1))


def _leftovers(but: str = "") -> Iterator[Step]:
    """What removes the rules of ours that are there, but those of one backend."""
    if but != NFT and _found(NFT) and _asked((NFT, "list", "table", *redirect_nft.TABLE.split())) is not None:
        yield Step((NFT, "-f", "-"), redirect_nft.removal())
    kept = {_kind(program) for program in _programs(but)} if but else set()
    seen = set(kept)
    for program in (each for name in BACKENDS for each in _programs(name)):
        if _found(program) and _kind(program) not in seen:
            seen.add(_kind(program))
            script = redirect_iptables.removal(_saved(program))
            if script:
                yield _restoring(program, script)


def _kind(program: str) -> tuple[str, bool]:
    """Two names of one program are one; `iptables` may be either of two."""
    real = Path(_found(f"{program}-save") or program).resolve().name
    return "ip6" if program.startswith("ip6") else "ip", _LEGACY in real


def _saved(program: str) -> str:
    """What iptables-save says of the tables that we have rules in; asking must not load a table."""
    family, is_legacy = _kind(program)
    if not _found(f"{program}-save"):
        return ""
    names = Path(f"/proc/net/{family}_tables_names")
    loaded = names.read_text(encoding="ascii").split() if is_legacy and names.exists() else []
    tables = [table for table in redirect_iptables.TABLES if table in loaded or not is_legacy]
    return "".join(_asked((f"{program}-save", "-t", table)) or "" for table in tables)


def _needs_address(of: Settings) -> bool:
    return of.has_ipv6 and bool(of.inbound_port)


def _has_address() -> bool:
    return bool(_found("ip") and _asked(_SHOW_ADDRESS))


def _keep_address(*, is_wanted: bool) -> None:
    """IPv4 has many addresses of the machine itself; IPv6 has one, so the proxy's calls need another."""
    if is_wanted and not _found("ip"):
        hint = "install it, for example with `apt-get install iproute2`, or choose --ip-family ipv4"
        raise KogumaError(f"ip is not on this machine, and IPv6 needs it; {hint}")
    if is_wanted:
        _run(_ADD_ADDRESS)
    elif _has_address():
        _run(_DELETE_ADDRESS)


def _require_power() -> None:
    """Fail now, with the reason, rather than with the words of some program."""
    status = Path("/proc/self/status")
    held = (
        re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE) if status.exists() else None
    )
    if held is None:
        raise KogumaError("a transparent proxy needs Linux: there the kernel redirects traffic")
    if not int(held[1], 16) & _NET_ADMIN:
        raise KogumaError(
            "not allowed to change how the kernel redirects traffic: run it as root, and in a container with"
            " the capability NET_ADMIN"
        )


def _found(program: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), _SYSTEM_PATH))
    return shutil.which(program, path=path) or ""


def _done(command: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
    program = _found(command[0])
    try:
        return subprocess.run(  # noqa: S603 - a program of the system, with words of ours
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
    done = _done(command, script)
    if done.returncode:
        said = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise KogumaError(f"`{' '.join(command)}` failed: {said or f'exit code {done.returncode}'}")


def _asked(command: tuple[str, ...]) -> str | None:
    """What a command says; None where it fails."""
    done = _done(command, "")
    return None if done.returncode else done.stdout
