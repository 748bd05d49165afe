"""Privileges: a proxy that root starts becomes another user before it does anything.

Nothing that a proxy does needs root: the kernel's rules are put there by another command. So the agent itself
changes its user, once and for good, and Envoy with it: whoever takes over either has no more than that user
has. The kernel also takes all capabilities away, so ports below 1024 need another way.
"""

import os
import pwd
import stat
import sys
from pathlib import Path
from typing import Final

import msgspec

from koguma.model.errors import KogumaError

ROOT: Final = 0


class Account(msgspec.Struct, frozen=True):
    """A user of the machine, as the kernel knows one."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = ""
    home: str = "/"


def account(text: str) -> Account:
    """The user of that name or number; a number needs no entry among the users of the machine."""
    try:
        entry = pwd.getpwuid(int(text)) if text.isascii() and text.isdigit() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        if not (text.isascii() and text.isdigit()):
            raise KogumaError(f'--user: there is no user "{text}" on this machine') from None
        return Account(int(text), int(text))
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)


def become(wanted: Account) -> None:
    """Change the user of this process, with all its groups; there is no way back."""
    if os.getuid() == os.geteuid() == wanted.uid:
        return
    if os.geteuid() != ROOT:
        raise KogumaError(f"--user: only root can become another user, and this is uid {os.geteuid()}")
    for path in (Path(sys.executable), Path(__file__)):
        closed = _closed_to(wanted, path.resolve())
        if closed is not None:
            who = wanted.name or f"uid {wanted.uid}"
            raise KogumaError(
                f"--user: {who} cannot read {closed}, in which this program is installed; open it to others,"
                " or install the program where everybody can read it"
            )
    _hand_over_streams(wanted)
    try:
        os.setgroups(wanted.groups)
        os.setresgid(wanted.gid, wanted.gid, wanted.gid)
        os.setresuid(wanted.uid, wanted.uid, wanted.uid)
    except OSError as error:
        raise KogumaError(f"--user: cannot become uid {wanted.uid}: {error.strerror}") from error
    # What was root's own is not for others to write into, and mostly they cannot.
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.environ |= {"HOME": wanted.home, **({"USER": wanted.name} if wanted.name else {})}


def _closed_to(who: Account, path: Path) -> Path | None:
    """The first directory on the way to a file, or the file, that a user cannot read; None where she can."""
    for each in (*reversed(path.parents), path):
        found = each.stat()
        if who.uid == found.st_uid:
            needed = stat.S_IXUSR if each != path else stat.S_IRUSR
        elif found.st_gid in (who.gid, *who.groups):
            needed = stat.S_IXGRP if each != path else stat.S_IRGRP
        else:
            needed = stat.S_IXOTH if each != path else stat.S_IROTH
        if who.uid != ROOT and not found.st_mode & needed:
            return each
    return None


def _hand_over_streams(to: Account) -> None:
    """Let the new user open /dev/stdout and /dev/stderr, to which access logs may go.

    Envoy opens these by their names, for which the kernel asks who owns the pipe or the terminal behind them.
    Files and other devices stay whose they are.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            number = stream.fileno()
            if stat.S_ISFIFO(os.fstat(number).st_mode) or os.isatty(number):
                os.fchown(number, to.uid, to.gid)
        except (OSError, ValueError):  # it is closed, or no file of the system
            continue
