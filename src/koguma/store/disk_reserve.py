"""DiskReserve: disk space that is kept for deletes on a full disk.

A full disk stops every write, even the deletes that would make room. So a file of a fixed size lies beside
the database. When the disk is full the file is removed, deletes and compaction use its space, and it is
created again as soon as the disk has enough.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

# For the write-ahead log that SQLite has not checkpointed yet (4 MB, and the largest batch of 8 MB), and for
# deletes themselves: a thousand small objects need about one megabyte.
RESERVE_BYTES = 16 * 1024 * 1024
_SCRATCH_BYTES = 1024 * 1024
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """The file beside the database at `path`."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self.path = path.with_name(f"{path.name}.reserve")
        self.size = size
        self.is_allocated = False

    def allocate(self) -> bool:
        """Allocate the file if it is not; whether it is now."""
        if not self.is_allocated:
            self.is_allocated = _allocate(self.path, self.size)
        return self.is_allocated

    def release(self) -> bool:
        """Free the space; whether there was any."""
        was_allocated, self.is_allocated = self.is_allocated, False
        self.path.unlink(missing_ok=True)
        return was_allocated

    def is_disk_full(self) -> bool:
        """Whether a file beside the database cannot grow, because of the disk or a quota."""
        scratch = self.path.with_name(f"{self.path.name}.scratch")
        try:
            return not _allocate(scratch, _SCRATCH_BYTES)
        finally:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)

    @property
    def bytes_left(self) -> int:
        """The space that the file system has left for this user."""
        stats = os.statvfs(self.path.parent)
        return stats.f_bavail * stats.f_frsize


def _allocate(path: Path, size: int) -> bool:
    """Create a file whose space is really allocated; if that fails, nothing is left behind."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            return True  # no reserve is possible here; any other problem the database itself will report
        path.unlink(missing_ok=True)
        return False
    return True
