"""Reserve: room on the disk that is kept for the moment when there is no other.

A full disk stops every write, also the deletes that would make it less full. So a file of a fixed size lies
beside the database. When the disk is full it is given back, deletes and the removal of old history use the
room, and it is made again as soon as the disk has enough.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

# What SQLite may have written ahead and not yet brought into the database (4 MB, and the largest batch of
# 8 MB), and some for deletes themselves: a thousand of small objects need about one megabyte.
RESERVE_BYTES = 16 * 1024 * 1024
_SCRATCH_BYTES = 1024 * 1024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The file beside the database at `path`."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self.path = path.with_name(f"{path.name}.reserve")
        self.size = size
        self.is_whole = False

    def fill(self) -> bool:
        """Make the file if it is not there as a whole; whether it now is."""
        if not self.is_whole:
            self.is_whole = _is_allocated(self.path, self.size)
        return self.is_whole

    def give_back(self) -> bool:
        """Let others have the room; whether there was any."""
        was_whole, self.is_whole = self.is_whole, False
        self.path.unlink(missing_ok=True)
        return was_whole

    def is_disk_full(self) -> bool:
        """Whether a file beside the database could not grow, for lack of room or by a quota."""
        scratch = self.path.with_name(f"{self.path.name}.scratch")
        try:
            return not _is_allocated(scratch, _SCRATCH_BYTES)
        finally:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)

    @property
    def bytes_left(self) -> int:
        """What the file system has left for this user."""
        found = os.statvfs(self.path.parent)
        return found.f_bavail * found.f_frsize


def _is_allocated(path: Path, size: int) -> bool:
    """Make a file of this size whose room is really there; where it is not, nothing is left behind."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return True  # no reserve can be kept here; what else is wrong, the database itself will say
        path.unlink(missing_ok=True)
        return False
    return True
