"""Machines for tests: network namespaces with addresses, name servers, services and callers of their own.

with Network(tmp_path) as network:
    hub, web = network.namespace("hub"), network.namespace("web")
    network.connect(hub, web, "10.9.1", "fd09:1")          # hub is 10.9.1.1 and fd09:1::1, web ends in 2
    web.start_service("web", 8080)
    hub.get("10.9.1.2", 8080).json["peer"]

They are made for one test run and gone after it. Only root can make them; what is missing to do so is
installed once.
"""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import pytest

from tests.live_mesh import Process

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "ip": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "iptables-legacy": "iptables",
    "setpriv": "util-linux",
}
_SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_NUMBERS = itertools.count()

P = TypeVar("P", bound=Process)

# A caller: what came back, or how it failed, as one line of JSON.
_CALLER = """
import http.client, json, sys
method, host, port, path, body = sys.argv[1:]
try:
    asked = http.client.HTTPConnection(host, int(port), timeout=5)
    headers = {"content-type": "application/json"} if body else {}
    asked.request(method, path, body.encode() or None, headers)
    answer = asked.getresponse()
    print(json.dumps([answer.status, dict(answer.getheaders()), answer.read().decode()]))
except ConnectionRefusedError:
    print(json.dumps([0, {}, "refused"]))
except ConnectionError:
    print(json.dumps([0, {}, "closed"]))
except OSError as error:
    print(json.dumps([0, {}, type(error).__name__]))
"""
# A service that says who it is and who called, on some ports of every address.
_SERVICE = """
import json, socket, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
name, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
class Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        peer = self.client_address[0].removeprefix("::ffff:")
        seen = {"name": name, "port": self.server.server_port, "peer": peer, "headers": dict(self.headers)}
        body = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
for port in ports:
    threading.Thread(target=Server(("::", port), Handler).serve_forever).start()
print("serves", flush=True)
"""
# A name server that knows some names, on a port of some addresses.
_NAME_SERVER = """
import asyncio, json, sys
from koguma.dp.dns import DnsServer
records, port, first, *more = sys.argv[1:]
async def main():
    server = DnsServer([])
    server.set_records(json.loads(records))
    await server.start(first, int(port))
    for host in more:
        await server.listen_also(host, int(port))
    print("answers", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
_RESOLVER = """
import socket, sys
try:
    print(socket.getaddrinfo(sys.argv[1], 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
except socket.gaierror:
    pass
"""


def ready() -> None:
    """Make sure that namespaces can be made here, or fail and say what to do."""
    if os.geteuid() != 0:
        pytest.fail("this test makes network namespaces, which needs root: run `make test` as root")
    if not _missing():
        return
    with (Path(tempfile.gettempdir()) / "koguma-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be at it
        if _missing():
            _apt_install(sorted({PACKAGES[each] for each in _missing()}))
    if _missing():
        pytest.fail(f"this test needs {', '.join(_missing())}, which apt-get could not install")


def _missing() -> list[str]:
    return [program for program in PACKAGES if not shutil.which(program, path=_SYSTEM_PATH)]


def _apt_install(packages: Sequence[str]) -> None:
    if not shutil.which("apt-get"):
        pytest.fail(f"this test needs the packages {', '.join(packages)}: install them and run it again")
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (command, ["apt-get", "update", "-q"], command):
        subprocess.run(words, env=quiet, capture_output=True, check=False, timeout=100)
        if not _missing():
            return


def run(*words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    environment = {**os.environ, "PATH": _SYSTEM_PATH}
    done = subprocess.run(words, input=stdin, env=environment, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
    return done


def as_user(uid: int) -> tuple[str, ...]:
    """The words before a command that run it as this user, wherever Python and Koguma are installed."""
    if uid == 0:
        return ()
    private = not all(_is_open(Path(each)) for each in (sys.executable, sys.base_prefix, sys.prefix, ROOT))
    may_read = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override") if private else ()
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *may_read)


def readable_by_others(beside: Path) -> tuple[str, ...]:
    """The words before a command of root's that let other users read Python and Koguma in it.

    Where they are installed below a directory that is closed to others, the command has a mount namespace of
    its own in which that directory holds nothing else and is open.
    """
    needed = [Path(each).resolve() for each in (sys.base_prefix, sys.prefix, ROOT)]
    closed = {parent for each in needed for parent in (each, *each.parents) if parent.stat().st_mode & 5 != 5}
    if not closed:
        return ()
    top = min(closed, key=lambda each: len(each.parts))
    kept = [each for each in dict.fromkeys(needed) if each.is_relative_to(top)]
    lines = []
    for index, each in enumerate(kept):
        aside = beside / f"kept-{index}"
        lines += [f"mkdir -p {aside}", f"mount --bind {each} {aside}"]
    lines.append(f"mount -t tmpfs -o mode=755 tmpfs {top}")
    for index, each in enumerate(kept):
        lines += [f"mkdir -p {each}", f"mount --bind {beside / f'kept-{index}'} {each}"]
    return ("unshare", "--mount", "sh", "-ec", "\n".join([*lines, 'exec "$@"']), "sh")


def _is_open(path: Path) -> bool:
    real = path.resolve()
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (real, *real.parents))


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response; without a status, `closed`, `refused`, or the class of the error."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        assert self.status, self.text
        return json.loads(self.text)


class Namespace:
    """A machine of the test."""

    def __init__(self, network: "Network", role: str) -> None:
        self.role = role
        self.name = f"kgm-{os.getpid()}-{next(_NUMBERS)}-{role}"
        self._network = network
        added = run("ip", "netns", "add", self.name, check=False)
        if added.returncode:
            pytest.fail(
                f"no network namespace can be made here (a container has to be privileged): {added.stderr}"
            )
        self.run("ip", "link", "set", "lo", "up")

    def within(self, *words: str, uid: int = 0) -> list[str]:
        """The command that runs another one in here."""
        return ["ip", "netns", "exec", self.name, *as_user(uid), *words]

    def run(self, *words: str, uid: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a program in here, to its end."""
        return run(*self.within(*words, uid=uid), **more)

    def start(self, name: str, *words: str, uid: int = 0, until_output: str) -> Process:
        """Start a program in here that runs until the end of the test."""
        started = self._network.start_process(name, self.within(*words, uid=uid))
        started.wait_for_output(until_output)
        return started

    def start_service(self, name: str, *ports: int, uid: int = 0) -> Process:
        """Start a service in here."""
        numbers = [str(port) for port in ports]
        return self.start(
            name, sys.executable, "-c", _SERVICE, name, *numbers, uid=uid, until_output="serves"
        )

    def start_name_server(
        self, name: str, address: str, *hosts: str, port: int = 53, uid: int = 0, **more: str
    ) -> Process:
        """Start a name server in here, on these addresses, that knows a name and more of them."""
        records = {known: [at] for known, at in {name: address, **more}.items()}
        words = (sys.executable, "-c", _NAME_SERVER, json.dumps(records), str(port), *hosts)
        return self.start(f"names-{port}", *words, uid=uid, until_output="answers")

    def resolve(self, name: str, uid: int = 0) -> str:
        """The address that a program in here finds for a name; empty where none."""
        return self.run(sys.executable, "-I", "-c", _RESOLVER, name, uid=uid).stdout.strip()

    def call(self, method: str, host: str, port: int, path: str, body: str = "", uid: int = 0) -> Answer:
        """One HTTP request from here, on a connection of its own."""
        words = (sys.executable, "-I", "-c", _CALLER, method, host, str(port), path, body)
        return Answer(*json.loads(self.run(*words, uid=uid).stdout))

    def get(self, host: str, port: int, path: str = "/", uid: int = 0) -> Answer:
        """One GET from here."""
        return self.call("GET", host, port, path, uid=uid)

    def use_name_servers(self, *name_servers: str) -> None:
        """Let programs in here ask these name servers."""
        folder = Path("/etc/netns") / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "resolv.conf").write_text("".join(f"nameserver {each}\n" for each in name_servers))

    def remove(self) -> None:
        run("ip", "netns", "delete", self.name, check=False)
        shutil.rmtree(Path("/etc/netns") / self.name, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's is in it, or it was not there
            Path("/etc/netns").rmdir()


class Network:
    """Machines and what runs on them; all is gone at the end."""

    def __init__(self, directory: Path) -> None:
        ready()
        self.directory = directory
        self._namespaces: list[Namespace] = []
        self._processes: list[Process] = []
        self._homes: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        running = [each for each in reversed(self._processes) if each._popen.poll() is None]
        for process in running:  # a second signal ends at once what would take its time
            process._popen.send_signal(signal.SIGTERM)
            process._popen.send_signal(signal.SIGINT)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process._popen.wait(10)
            process.kill()
        for namespace in self._namespaces:
            namespace.remove()
        for home in self._homes:
            shutil.rmtree(home, ignore_errors=True)

    def namespace(self, role: str) -> Namespace:
        """One more machine."""
        namespace = Namespace(self, role)
        self._namespaces.append(namespace)
        return namespace

    def start_process(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        of: type[P] = Process,
    ) -> P:
        """Start a process that ends with the test."""
        log = self.directory / f"{name}-{next(_NUMBERS)}.log"
        process = of(name, command, log, {**environment, "PATH": _SYSTEM_PATH})
        self._processes.append(process)
        return process

    def home(self, uid: int) -> Path:
        """A directory of a user's own, with a short name."""
        home = Path(tempfile.mkdtemp(prefix="kgm-"))
        os.chown(home, uid, uid)
        self._homes.append(home)
        return home

    def connect(self, router: Namespace, other: Namespace, ipv4: str, ipv6: str) -> None:
        """A wire between two machines; everything that the other one calls goes through the router."""
        ends = [f"kg{os.getpid() % 0xFFFFF:x}x{next(_NUMBERS)}" for _ in range(2)]
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (end, namespace) in enumerate(zip(ends, (router, other), strict=True), 1):
            run("ip", "link", "set", end, "netns", namespace.name)
            namespace.run("ip", "address", "add", f"{ipv4}.{number}/24", "dev", end)
            namespace.run("ip", "address", "add", f"{ipv6}::{number}/64", "dev", end, "nodad")
            namespace.run("ip", "link", "set", end, "up")
        other.run("ip", "route", "add", "default", "via", f"{ipv4}.1")
        other.run("ip", "-6", "route", "add", "default", "via", f"{ipv6}::1")
        forwarding = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
        router.run("sh", "-c", "; ".join(f"echo 1 > /proc/sys/{each}" for each in forwarding))
