"""Privileges: a proxy that root starts becomes another user (--user) before it does anything else.

Nothing that a proxy does needs root: the redirect rules are installed by another command. So the agent drops
its privileges for good, and Envoy inherits that: whoever compromises either has the rights of that user only.
The kernel drops all capabilities too, so ports below 1024 need another way.
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


def find_account(text: str) -> Account:
    """The user of that name or uid; a uid need not have an entry in the user database."""
    try:
        entry = pwd.getpwuid(int(text)) if text.isascii() and text.isdigit() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        if not (text.isascii() and text.isdigit()):
            raise KogumaError(f'--user: there is no user "{text}" on this machine') from None
        return Account(int(text), int(text))
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)


def become(account: Account) -> None:
    """Change the user of this process, with all its groups; this cannot be undone."""
    if os.getuid() == os.geteuid() == account.uid:
        return
    if os.geteuid() != ROOT:
        raise KogumaError(f"--user: only root can become another user, and this is uid {os.geteuid()}")
    for path in (Path(sys.executable), Path(__file__)):
        unreadable = _unreadable_part(account, path.resolve())
        if unreadable is not None:
            user = account.name or f"uid {account.uid}"
            raise KogumaError(
                f"--user: {user} cannot read {unreadable}, in which this program is installed; open it to"
                " others, or install the program where everybody can read it"
            )
    _hand_over_streams(account)
    try:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    except OSError as error:
        raise KogumaError(f"--user: cannot become uid {account.uid}: {error.strerror}") from error
    # Root's runtime directory must not be used by another user, who mostly could not write to it anyway.
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.environ |= {"HOME": account.home, **({"USER": account.name} if account.name else {})}


def _unreadable_part(account: Account, path: Path) -> Path | None:
    """The first parent directory, or the file itself, that a user cannot read; None where there is none."""
    for part in (*reversed(path.parents), path):
        status = part.stat()
        if account.uid == status.st_uid:
            needed = stat.S_IXUSR if part != path else stat.S_IRUSR
        elif status.st_gid in (account.gid, *account.groups):
            needed = stat.S_IXGRP if part != path else stat.S_IRGRP
        else:
            needed = stat.S_IXOTH if part != path else stat.S_IROTH
        if account.uid != ROOT and not status.st_mode & needed:
            return part
    return None


def _hand_over_streams(account: Account) -> None:
    """Let the new user open /dev/stdout and /dev/stderr, to which access logs may go.

    Envoy opens them by name, so the kernel checks the owner of the pipe or terminal behind them. The owner of
    files and other devices is not changed.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            number = stream.fileno()
            if stat.S_ISFIFO(os.fstat(number).st_mode) or os.isatty(number):
                os.fchown(number, account.uid, account.gid)
        except (OSError, ValueError):  # it is closed, or has no file descriptor
            continue
