"""The README's tour, run as it is written, on a live demo; and what it says about services of one's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_run import Demo
from tests.http_client import call, request_over_socket
from tests.live_mesh import Echo, LiveMesh, Process
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parent.parent
BIN = str(Path(sys.executable).parent)
# What runs until it is stopped.
ENDLESS = re.compile(r"cp run|dp run| -w$|curl -sN")


def commands(heading):
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line[2:] for line in lines]


def environment(tmp_path, exported):
    path = f"{BIN}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **exported, "XDG_CONFIG_HOME": str(tmp_path)}


def run(command, directory, variables):
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=variables, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done


def curl(command, exported):
    """What a reader's curl gets; this machine may have none."""
    _, path = command.split("localhost/", 1)
    file = re.search(r"--unix-socket (\S+)", command).group(1)
    assert file == "$KOGUMA_DATA_DIR/api.sock"
    return request_over_socket(Path(exported["KOGUMA_DATA_DIR"]), "GET", "/" + path.strip("'"))


@pytest.mark.slow
def test_every_command_of_the_tour_does_what_it_says(tmp_path):
    written = [command for command in commands("A tour") if not ENDLESS.search(command)]
    assert len(written) >= 15
    with Demo() as demo:
        demo.shows(r"v1 █+ [89]\d%  v2 █+ ([4-9]|1\d|2\d)%")
        for command in written:
            if command.startswith("curl"):
                assert curl(command, demo.exported).status == 200, command
                continue
            variables = environment(tmp_path, demo.exported)
            done = run(command, ROOT, variables)
            if command.startswith("koguma get proxies"):  # one of them may just be getting something
                until(lambda: run(command, ROOT, variables).stdout.count("synced") == 4, command)  # noqa: B023 - asked at once
            # A mistake is refused, and a difference is told by the exit code too.
            expected = 1 if "requestTimout" in command or command.startswith("koguma diff") else 0
            expected = 2 if command.startswith("koguma plan") else expected
            assert done.returncode == expected, (command, done.stdout, done.stderr)
            see(command, done, demo)
        assert demo.end() == 0
    assert "Traceback" not in demo.text


def see(command, done, demo):
    """That what the tour promises did happen."""
    if "requestTimout" in command:
        assert "<stdin>:10:31: spec.to[0].default.http.requestTimout: unknown field" in done.stderr
    elif "--envoy" in command:
        assert "listeners[kri_msvc_shop_default__backend_http]" in done.stdout
    elif command.startswith("koguma plan"):
        assert "calls to backend:http" in done.stdout
        assert "examples/shop/policies.yaml:" in done.stdout
    elif command.startswith("koguma explain"):
        assert "MeshTimeout http.requestTimeout = 5s" in done.stdout
    elif command.startswith("koguma diff"):
        assert "-          weight: 50\n+          weight: 10" in done.stdout
    elif "weight: 50" in command:
        demo.shows(r"v1 █+ [3-6]\d%  v2 █+ [3-6]\d%")
    elif "delete meshtrafficpermission" in command:
        demo.shows(r"^403 denied by no-permission\(deny-by-default\) █+ 100%")
    elif command.endswith("permissions.yaml"):
        demo.shows(r"v1 █+ [3-6]\d%  v2 █+ [3-6]\d%")


@pytest.mark.slow
def test_services_of_ones_own_join_as_it_says(tmp_path):
    echo, ports = Echo(name="api-1"), {"10080": free_port(), "9000": free_port()}
    started = []
    with LiveMesh(tmp_path / "mesh") as mesh:
        variables = {**mesh.environment, "PATH": f"{BIN}:{os.environ['PATH']}"}
        for command in commands("Your own services"):
            real = command.replace("8080 --protocol", f"{echo.port} --protocol")
            for known, free in ports.items():
                real = re.sub(rf"\b{known}\b", str(free), real)
            if command.startswith("koguma cp run"):
                continue  # the mesh has one, on ports of its own
            if command.startswith("curl"):
                answer = until(lambda: (got := call(ports["9000"])).status == 200 and got, command)
                assert answer.json["name"] == "api-1"
            elif "dp run" in command:
                there = f" --cp-address https://127.0.0.1:{mesh.dp} --drain-time 1s"
                log = tmp_path / f"{len(started)}.log"
                process = Process(command, ["bash", "-c", f"exec {real}{there}"], log, variables, tmp_path)
                started.append(process)
                process.wait_for_output("is ready: ")
            else:
                done = run(real, tmp_path, variables)
                assert done.returncode == 0, done.stderr
        assert len(started) == 2
        assert [process.stop() for process in started] == [0, 0]
    echo.stop()
