"""A private PgBouncer for tests, in front of one PostgreSQL: its own port, gone at the end."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests import debian
from tests.ports import free_port

_PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
# So few connections to the server that clients share them, and each transaction gets the one that rested
# longest: what a session leaves behind would be missed, or met, by another one.
_SETTINGS = """
[databases]
* = host={host} port={port} user={server_user} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
server_tls_sslmode = prefer
user = {user}
pool_mode = {pool_mode}
default_pool_size = {pool_size}
server_round_robin = 1
server_login_retry = 1
server_connect_timeout = 2
server_lifetime = 3600
ignore_startup_parameters = {ignored}
"""


class PgBouncer:
    """A pooler in front of the server at an address; it can be stopped, and led to another server."""

    def __init__(
        self, server: str, pool_mode: str = "transaction", *, pool_size: int = 3, ignored: str = ""
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="koguma-pgbouncer-"))
        self.folder.chmod(0o755)
        self.host = f"127.0.0.1:{free_port()}"
        self._values = {"pool_mode": pool_mode, "pool_size": pool_size, "ignored": ignored}
        self._configure(server)
        self._process: subprocess.Popen[bytes] | None = None

    def in_front_of(self, url: str) -> str:
        """The address of a database of the server, through this pooler."""
        parts = urlsplit(url)
        return parts._replace(netloc=f"{parts.username}@{self.host}").geturl()

    def start(self) -> None:
        """Start, and return when it answers."""
        binary = shutil.which("pgbouncer")
        environment = dict(os.environ)
        if binary is None:
            files = debian.unpacked(*_PACKAGES)
            binary = str(next(files.glob("**/*bin/pgbouncer")))
            environment["LD_LIBRARY_PATH"] = str(next(files.glob("**/libevent-2.1.so.7")).parent)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, str(self.folder / "settings.ini")], stdout=log, stderr=log, env=environment
            )
        ends_at = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < ends_at, "PgBouncer does not answer"
            time.sleep(0.02)

    def lead_to(self, server: str) -> None:
        """Use another server from now on; clients stay connected."""
        assert self._process
        self._configure(server)
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End at once, with all connections."""
        assert self._process
        self._process.kill()
        self._process.wait(30)
        self._process = None

    def remove(self) -> None:
        """Stop, if it runs, and delete everything."""
        if self._process:
            self.stop()
        shutil.rmtree(self.folder)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def _configure(self, server: str) -> None:
        parts = urlsplit(server)
        values = {
            **self._values,
            "host": parts.hostname,
            "port": parts.port or 5432,
            "server_user": parts.username,
            "password": f"password='{unquote(parts.password)}'" if parts.password else "",
            "user": "nobody" if os.geteuid() == 0 else "",  # it refuses to run as root
            "listen_port": self.host.rpartition(":")[2],
        }
        (self.folder / "settings.ini").write_text(_SETTINGS.format(**values))

    def _answers(self) -> bool:
        host, _, port = self.host.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 60).close()
        except OSError:
            return False
        return True
