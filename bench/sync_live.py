"""One change on Global until a call through a zone's Envoy shows it, beside the same change in the zone."""

import json
import time
from pathlib import Path
from typing import Any

from bench.figures import Figure, compared, percentile
from bench.live import Client, route, two_services
from bench.sync_global import MeasuredGlobal
from tests.live_mesh import LiveMesh
from tests.waiting import until

_PAUSE_SECONDS = 0.02
_LOOK_SECONDS_MAX = 10.0
_WARM = 2


class OneSide:
    """A control plane that is written to, and the proxy in the zone that is called."""

    def __init__(
        self, port: int, outbound: int, token: str = "", labels: dict[str, str] | None = None
    ) -> None:
        self._client = Client(port, outbound)
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._labels = labels or {}

    def change(self, value: str) -> float:
        """Seconds from the sent write to the first call that shows it."""
        document: dict[str, Any] = {**route(value), "labels": self._labels}
        sent = time.monotonic()
        self._client.post("/_apply", json.dumps([document]).encode(), self._headers)
        while self._client.call() != value:
            assert time.monotonic() < sent + _LOOK_SECONDS_MAX, f"{value} never became live"
        return time.monotonic() - sent

    def changes(self, word: str, number: int) -> list[float]:
        """Milliseconds of so many changes; the first ones find nothing compiled, and do not count."""
        seconds = []
        for turn in range(_WARM + number):
            seconds.append(self.change(f"{word}-{turn}"))
            time.sleep(_PAUSE_SECONDS)
        return [1000 * each for each in seconds[_WARM:]]

    def close(self) -> None:
        """Close both connections."""
        self._client.close()


def measured_changes(folder: Path, top: MeasuredGlobal, token: Path, number: int) -> list[Figure]:
    """The figures of so many changes on either side, in turns."""
    mesh = LiveMesh(
        folder / "live",
        mode="zone",
        zone_name="live",
        global_address=f"grpcs://127.0.0.1:{top.sync_port}",
        global_ca=str(top.folder / "ca.pem"),
        zone_token_file=str(token),
    )
    with mesh:
        until(lambda: mesh.request("GET", "/meshes/default").status == 200, "the mesh comes from Global", 60)
        client = two_services(mesh)
        outbound = client.outbound_port
        client.close()
        on_global = OneSide(top.port, outbound, top.token)
        in_zone = OneSide(mesh.api, outbound, labels={"kuma.io/origin": "zone"})
        # One after the other, since the zone's own route is preferred to Global's.
        ours, bare = on_global.changes("global", number), in_zone.changes("zone", number)
        for side in (on_global, in_zone):
            side.close()
    what = "one change on Global seen in a zone's Envoy, against one in the zone"
    return [
        compared(f"{what}, {name}", "ms", [percentile(ours, share)], [percentile(bare, share)], better="less")
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
