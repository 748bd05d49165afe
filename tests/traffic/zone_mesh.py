"""A Global and three zones as processes, with real Envoys, and traffic from one zone to the others.

    east (SQLite):      web ──▶ backend-east
    west (PostgreSQL):  two ingresses ──▶ backend-west
    south (SQLite):     one ingress ──▶ backend-south, of a MeshService that selects by labels

`everywhere` is the MeshMultiZoneService over the three. Zones reach Global (PostgreSQL) through relays that a
test can cut.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests import build
from tests.control_plane import store_key
from tests.http_client import Response, joined_headers
from tests.live_mesh import LiveMesh, Sidecar, load
from tests.ports import free_port
from tests.postgres import Databases
from tests.waiting import until as until_soon

# Fourteen processes start at once, on whatever machine this is.
WAIT_SECONDS = 90.0
until = partial(until_soon, seconds=WAIT_SECONDS)

ZONES = ("east", "west", "south")
TEAM = {"team": "south"}
# Requests on their way to a proxy that is killed are sent again: they are safe to repeat. They go to
# other zones at once: on a busy machine Envoy may take longer to leave out a host than to try five times.
RETRY = {
    "targetRef": {"kind": "Mesh"},
    "to": [
        {
            "targetRef": {"kind": "Mesh"},
            "default": {
                "http": {
                    "numRetries": 5,
                    "backOff": {"baseInterval": "25ms", "maxInterval": "250ms"},
                    "retryOn": ["GatewayError", "Reset", "ConnectFailure", "RefusedStream"],
                    "hostSelection": [
                        {"predicate": "OmitPreviousHosts"},
                        {"predicate": "OmitPreviousPriorities", "updateFrequency": 1},
                    ],
                }
            },
        }
    ],
}


POLICIES = {
    "MeshLoadBalancingStrategy": ("meshloadbalancingstrategies", "mlbs"),
}


class TcpRelay:
    """A TCP connection to a local port that can be cut: existing ones end, and new ones are refused."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._open: set[socket.socket] = set()
        self._listening: socket.socket | None = None
        self.join()

    def join(self) -> None:
        """Let connections through."""
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        """End all connections, and accept none."""
        listening, self._listening = self._listening, None
        for each in ([listening] if listening else []) + list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: the end
            while True:
                connection, _ = listening.accept()
                try:
                    other = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    connection.close()
                    continue
                self._open |= {connection, other}
                for pair in ((connection, other), (other, connection)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            self._open.discard(each)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class ZoneMesh:
    """Global, the zones, and what runs in them."""

    web: Sidecar

    def __init__(self, directory: Path, postgres: Databases) -> None:
        self.directory = directory
        self._stack = contextlib.ExitStack()
        self.sync_port = free_port()
        key = store_key(directory / "k")
        shared = {"store_key_file": key}
        self.top = LiveMesh(
            directory / "g", mode="global", sync_port=str(self.sync_port), store=postgres.database(), **shared
        )
        self._stores = {"west": {"store": postgres.database(), **shared}}
        self.relays: dict[str, TcpRelay] = {}
        self.zones: dict[str, LiveMesh] = {}
        self.ingresses: dict[str, list[Sidecar]] = {zone: [] for zone in ZONES}
        self.ingress_ports = {zone: [free_port(), free_port()] for zone in ZONES}
        self.ports = {zone: free_port() for zone in ZONES}  # of backends
        self.backends: dict[str, Sidecar] = {}
        self.n_killed = 0  # proxies
        self.outbounds = {name: free_port() for name in ("everywhere", "west", "south")}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.top)
            self._write_on_global()
            self.zones = {zone: self._zone(zone) for zone in ZONES}
            for plane in self.zones.values():
                stack.enter_context(plane.without_waiting())
            for plane in self.zones.values():
                plane.wait_until_ready()
            for plane in self.zones.values():
                until(lambda plane=plane: "mtls" in plane.request("GET", "/meshes/default").text, "the mesh")
            self._start_proxies()
            until(lambda: self.answered() == 200, "a request goes through")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for relay in self.relays.values():
            relay.cut()

    def _write_on_global(self) -> None:
        everywhere = build.multi_zone_service(
            "everywhere", build.port(80, name="http"), labels={"kuma.io/display-name": "backend"}
        )
        retry = build.document("MeshRetry", "again", spec=RETRY)
        mesh = build.mesh(mtls=build.builtin_mtls())
        self.top.apply(mesh, build.allow_all(), everywhere, retry)

    def _zone(self, name: str) -> LiveMesh:
        token = self.directory / f"{name}.token"
        token.write_text(self.zone_token(name, "cp"))
        relay = self.relays[name] = TcpRelay(self.sync_port)
        return LiveMesh(
            self.directory / name[0],
            mode="zone",
            zone_name=name,
            global_address=f"grpcs://127.0.0.1:{relay.port}",
            global_ca=str(self.directory / "g" / "cp" / "ca.pem"),
            zone_token_file=str(token),
            **self._stores.get(name, {}),
        )

    def zone_token(self, zone: str, *scope: str) -> str:
        body = {"zone": zone, "scope": list(scope), "validFor": "24h"}
        answer = self.top.request("POST", "/tokens/zone", body)
        assert answer.status == 200, answer.text
        return answer.text

    def _start_proxies(self) -> None:
        for zone in ZONES:
            self.start_backend(zone)
        for zone, number in (("west", 0), ("west", 1), ("south", 0)):
            self.start_ingress(zone, number)
        self.zones["south"].apply(
            build.document(
                "MeshService",
                "team",
                labels={"kuma.io/origin": "zone"},
                spec={
                    "selector": {"dataplaneLabels": {"matchLabels": TEAM}},
                    "ports": [{"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}],
                },
            )
        )
        self._start_web()
        for sidecar in (*self.backends.values(), *self.ingresses["west"], *self.ingresses["south"], self.web):
            sidecar.wait_for_output("is ready", WAIT_SECONDS)

    def start_backend(self, zone: str) -> Sidecar:
        """Start the backend of a zone, or start it again."""
        flags = [f"--label={name}={value}" for name, value in TEAM.items()] if zone == "south" else []
        backend = self.zones[zone].sidecar(
            f"backend-{zone}", "backend", inbound=self.ports[zone], flags=flags, wait=False
        )
        self.backends[zone] = backend
        return backend

    def start_ingress(self, zone: str, number: int) -> Sidecar:
        """Start an ingress of a zone, or start it again."""
        name, port = f"ingress-{number}", self.ingress_ports[zone][number]
        flags = ("--proxy-type", "ingress", "--name", name, "--port", str(port))
        ingress = self.zones[zone]._proxy(name, self.zone_token(zone, "ingress"), *flags)
        self.ingresses[zone][number : number + 1] = [ingress]
        return ingress

    def _start_web(self) -> None:
        refs: Mapping[str, Mapping[str, Any]] = {
            "everywhere": {"kind": "MeshMultiZoneService", "name": "everywhere", "port": 80},
            "west": {"kind": "MeshService", "labels": _named("backend", "west"), "port": self.ports["west"]},
            "south": {"kind": "MeshService", "labels": _named("team", "south"), "port": 80},
        }
        outbound = [{"port": self.outbounds[name], "backendRef": ref} for name, ref in refs.items()]
        file = self.directory / "web.yaml"
        file.write_text(str(build.dataplane("web-1", "web", outbound=outbound)))
        east = self.zones["east"]
        token = east.service_token("web-1", "web")
        self.web = east._proxy("web-1", token, "--dataplane-file", str(file))
        self.web.outbounds = self.outbounds

    # What is asked of it.

    def get(self, to: str = "everywhere") -> Response:
        """One request of web's."""
        return self.web.call(to)

    def answered(self, to: str = "everywhere") -> int:
        """The status of one request; 0 where the connection fails."""
        try:
            return self.get(to).status
        except OSError:
            return 0

    def answering(self, n_requests: int = 30) -> Counter[str]:
        """Who answers `everywhere`; an answer of nobody's is its status."""
        answers = (self.get() for _ in range(n_requests))
        return Counter(each.headers.get("x-from") or str(each.status) for each in answers)

    def wait_for(self, *backends: str) -> None:
        """Wait until exactly these answer, of thirty requests."""
        until(lambda: set(self.answering()) == set(backends), f"{backends} answer")

    def endpoints(self, cluster: str = "kri_mzsvc_default___everywhere_http") -> set[int]:
        """The ports of the endpoints that web's Envoy has."""
        lines = self.web.admin(f"/clusters?filter={cluster}$").splitlines()
        hosts = (line.split("::")[1] for line in lines if "::cx_active::" in line)
        return {int(host.rpartition(":")[2]) for host in hosts}

    @contextlib.contextmanager
    def no_request_fails(self, *names: str) -> Iterator[None]:
        """Call destinations all the time, on new connections and on kept ones: every answer is 200.

        Nobody can send a request again whose answer has begun, so each proxy that is killed may cut as many
        answers as there are callers.
        """
        before = self.n_killed
        ports = [self.outbounds[name] for name in names or ("everywhere",)]
        callers = [_Caller(port, is_kept=is_kept) for port in ports for is_kept in (True, False)]
        with contextlib.ExitStack() as stack:
            for caller in callers:
                stack.enter_context(contextlib.closing(caller))
            loads = [stack.enter_context(load(caller.ask, 1, pause=0.01)) for caller in callers]
            yield
        assert [set(counts) for counts in loads] == [{"200"}] * len(callers), loads
        assert sum(caller.n_cut for caller in callers) <= (self.n_killed - before) * len(callers)

    def kill(self, sidecar: Sidecar) -> None:
        """End a proxy and its Envoy at once."""
        self.n_killed += 1
        envoy = sidecar.envoy_pid()
        sidecar.kill()
        with contextlib.suppress(ProcessLookupError):  # it goes with its agent
            os.kill(envoy, signal.SIGKILL)

    def wait_for_endpoints(self, *ports: int) -> None:
        """Wait until web's Envoy has exactly these endpoints of `everywhere`."""
        until(lambda: self.endpoints() == set(ports), f"the endpoints are {ports}, of {self.endpoints()}")

    def wait_until_nobody_calls(self, zone: str) -> None:
        """Wait until no request of many reaches the backend of a zone; some may be on their way at first."""
        service = self.backends[zone].service
        assert service is not None

        def is_quiet() -> bool:
            before = len(service.seen)
            self.answering(60)
            return len(service.seen) == before

        until(is_quiet, f"nobody calls {zone}")

    def is_online(self, zone: str) -> bool:
        """Whether Global has a connection of a zone."""
        overview = self.top.request("GET", f"/zones/{zone}/_overview").json
        return bool((overview.get("connection") or {}).get("online"))

    def rename(self, zone: str, name: str) -> None:
        """Stop all of a zone, and start it under another name with a store of its own."""
        for proxy in (self.backends.pop(zone), *self.ingresses.pop(zone)):
            proxy.stop(30)
        self.zones.pop(zone).control_plane.stop()
        self.ports[name], self.ingress_ports[name], self.ingresses[name] = free_port(), [free_port()], []
        self.zones[name] = self._stack.enter_context(self._zone(name))
        plane = self.zones[name]
        until(lambda: "mtls" in plane.request("GET", "/meshes/default").text, "the mesh is there")
        self.start_backend(name)
        self.start_ingress(name, 0)

    def wait_for_all(self, name: str) -> None:
        """Wait until what is written on each side now is on every other that gets it."""
        for zone, plane in self.zones.items():
            labels = {"kuma.io/origin": "zone"}
            until(lambda plane=plane: plane.request("GET", "/ready").status == 200, "it serves")
            plane.apply(build.timeout(f"{name}-of-{zone}", labels=labels))
        self.top.apply(build.timeout(name))
        for zone, plane in self.zones.items():
            until(lambda plane=plane: _finds(plane, f"kri_mt_default___{name}_"), "Global's is in the zone")
            mine = f"kri_mt_default_{zone}__{name}-of-{zone}_"
            until(lambda mine=mine: _finds(self.top, mine), "the zone's is on Global")
            plane.delete("meshtimeouts", f"{name}-of-{zone}")
            until(lambda mine=mine: not _finds(self.top, mine), "it is gone from Global")
        self.top.delete("meshtimeouts", name)

    def differences(self) -> list[str]:
        """Objects that are not the same wherever they are seen, or that somebody lacks."""
        seen = {zone: _objects(plane) for zone, plane in {"": self.top, **self.zones}.items()}
        found = []
        for kri, (kind, zone, text) in seen[""].items():
            elsewhere = {place for place, objects in seen.items() if kri in objects}
            others = set(ZONES) if not zone or kind in ("MeshService", "ZoneIngress") else {zone}
            if elsewhere != {"", *others}:
                found.append(f"{kri} is on {sorted(elsewhere)}")
            texts = {place: seen[place][kri][2] for place in sorted(elsewhere)}
            found += [
                f"{kri} on {at or 'Global'}: {own}, not {text}" for at, own in texts.items() if own != text
            ]
        known = {kri for objects in seen.values() for kri in objects}
        return found + [f"{kri} is not on Global" for kri in sorted(known - set(seen[""]))]

    @contextlib.contextmanager
    def policy(self, kind: str, spec: Mapping[str, Any]) -> Iterator[None]:
        """A policy on Global that east has got; gone again afterwards."""
        plural, short = POLICIES[kind]
        found = f"/_kri/kri_{short}_default___of-test_"
        east = self.zones["east"]
        self.top.apply(build.document(kind, "of-test", spec=spec))
        until(lambda: east.request("GET", found).status == 200, "the policy is in the zone")
        east.wait_until_synced(east.revision())
        try:
            yield
        finally:
            self.top.delete(plural, "of-test")
            until(lambda: east.request("GET", found).status == 404, "the policy is gone")
            east.wait_until_synced(east.revision())

    def locality(self, **awareness: Any) -> contextlib.AbstractContextManager[None]:
        """A MeshLoadBalancingStrategy for `everywhere`."""
        default = {"localityAwareness": awareness}
        ref = {"kind": "MeshMultiZoneService", "name": "everywhere"}
        return self.policy("MeshLoadBalancingStrategy", {"to": [{"targetRef": ref, "default": default}]})

    def switch(self, zone: str, *, enabled: bool) -> None:
        """Switch a zone on or off, on Global."""
        document = {"type": "Zone", "name": zone, "enabled": enabled}
        assert self.top.request("PUT", f"/zones/{zone}", document).status == 200


# All kinds that travel and that the zones of this mesh have.
_PLURALS = (
    *("meshservices", "meshmultizoneservices", "zoneingresses", "hostnamegenerators", "dataplanes"),
    *("meshtimeouts", "meshretries", "meshcircuitbreakers", "meshtrafficpermissions"),
)


def _objects(plane: LiveMesh) -> dict[str, tuple[str, str, str]]:
    """What a control plane has, by KRI: the kind, the zone, and what is the same wherever it is seen."""
    found = {}
    for plural in _PLURALS:
        for item in plane.request("GET", f"/{plural}").json["items"]:
            labels = item.get("labels") or {}
            spec = item.get("spec") or {name: value for name, value in item.items() if name == "networking"}
            if item["type"] == "MeshService":  # in its own zone these stand in the status
                spec = {name: spec[name] for name in spec if name not in ("state", "identities")}
            same = [spec, item["creationTime"], item["type"], item.get("mesh"), labels.get("kuma.io/zone")]
            found[item["kri"]] = item["type"], item["kri"].split("_")[3], json.dumps(same, sort_keys=True)
    return found


class _Caller:
    """Calls a local port, on one connection or on a new one each time."""

    def __init__(self, port: int, *, is_kept: bool) -> None:
        self.n_cut = 0  # answers that ended before their end
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._is_kept = is_kept

    def close(self) -> None:
        self._connection.close()

    def ask(self) -> Response:
        """One answer that is whole, and good."""
        while True:
            try:
                self._connection.request("GET", "/")
                response = self._connection.getresponse()
                answer = Response(response.status, joined_headers(response.getheaders()), response.read())
            except http.client.IncompleteRead:
                self.n_cut += 1
                self.close()
                continue
            if not self._is_kept:
                self.close()
            assert answer.status == 200, f"{answer.status} {answer.text}"
            return answer


def _finds(plane: LiveMesh, kri: str) -> bool:
    return plane.request("GET", f"/_kri/{kri}").status == 200


def _named(name: str, zone: str) -> dict[str, str]:
    return {"kuma.io/display-name": name, "kuma.io/zone": zone}
