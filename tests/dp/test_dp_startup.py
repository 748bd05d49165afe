"""When a proxy is ready, and what is said while it is not."""

import asyncio
import contextlib
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koguma.dp import startup
from koguma.dp.admin import Admin, ListenerError
from koguma.dp.envoy import LoggedListenerError
from koguma.dp.startup import Startup
from tests.ports import free_port

INBOUND = "kri_dp_default_default__web-1_8080"
OTHER = "kri_msvc_default_default__backend_80"
METRICS = "_kuma_metrics_prometheus_default"


class EnvoyAdmin:
    """An admin interface that tells of these states one after the other, and stays at the last."""

    def __init__(self, *steps: dict[str, str]) -> None:
        self._steps = list(steps)  # listeners by name, each with why it was refused, empty where it was not
        self.was_dumped = asyncio.Event()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/ready":
            return web.Response(text="LIVE\n")
        now = self._steps[0]
        if request.path == "/listeners":
            if len(self._steps) > 1:
                self._steps.pop(0)
            place = {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
            names = [name for name, details in now.items() if not details]
            return web.json_response(
                {"listener_statuses": [{"name": n, "local_address": place} for n in names]}
            )
        self.was_dumped.set()
        dump: list[Any] = []
        for name, details in now.items():
            error = {"error_state": {"details": details}} if details else {}
            dump += [{"name": name, **error}, *([error] if error else [])]  # as Envoy lists it
        return web.json_response({"configs": dump})


@contextlib.asynccontextmanager
async def serving(directory: Path, envoy: EnvoyAdmin) -> AsyncIterator[Admin]:
    runner = web.ServerRunner(web.Server(envoy.answer, access_log=None))
    await runner.setup()
    await web.UnixSite(runner, str(directory / "a.sock")).start()
    try:
        yield Admin(directory / "a.sock")
    finally:
        await runner.cleanup()


async def reported(
    directory: Path,
    *steps: dict[str, str],
    logged: dict[str, LoggedListenerError] | None = None,
    names: asyncio.Event | None = None,
) -> list[str]:
    report: list[str] = []
    async with serving(directory, EnvoyAdmin(*steps)) as admin, asyncio.timeout(60):
        await Startup(admin, logged or {}, names, report.append).finish()
    return report


def unbound(port: int, why: str = "Address already in use") -> str:
    return f"cannot bind '127.0.0.1:{port}': {why}"


async def test_an_envoy_with_all_its_listeners_is_ready_without_a_word(tmp_path):
    assert await reported(tmp_path, {INBOUND: ""}) == []


async def test_a_listener_that_was_refused_is_said_once_and_waited_for(tmp_path):
    refused = {INBOUND: unbound(free_port())}
    (report,) = await reported(tmp_path, refused, refused, {INBOUND: ""})
    assert report.startswith("is not ready: it cannot listen on 127.0.0.1:")


async def test_what_envoy_logged_counts_where_it_has_heard_of_other_listeners_since(tmp_path):
    logged = {INBOUND: LoggedListenerError(unbound(free_port()), time.monotonic())}
    (report,) = await reported(tmp_path, {OTHER: ""}, {OTHER: ""}, {INBOUND: "", OTHER: ""}, logged=logged)
    assert report.startswith("is not ready: it cannot listen on 127.0.0.1:")


async def test_a_listener_that_nobody_wants_any_more_is_waited_for_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(startup, "_ERROR_SECONDS_MAX", 0.3)
    logged = {INBOUND: LoggedListenerError(unbound(free_port()), time.monotonic())}
    assert len(await reported(tmp_path, {OTHER: ""}, logged=logged)) == 1


async def test_a_port_for_metrics_holds_nothing_up(tmp_path):
    (report,) = await reported(tmp_path, {INBOUND: "", METRICS: unbound(free_port())})
    assert report.startswith("cannot be scraped: it cannot listen on 127.0.0.1:")


async def test_names_of_the_mesh_are_waited_for(tmp_path):
    names, report = asyncio.Event(), []
    envoy = EnvoyAdmin({INBOUND: ""})
    async with serving(tmp_path, envoy) as admin:
        waiting = asyncio.create_task(Startup(admin, {}, names, report.append).finish())
        await envoy.was_dumped.wait()
        assert not waiting.done()
        names.set()
        async with asyncio.timeout(60):
            await waiting
    assert report == []


def test_who_has_the_address_is_said():
    with socket.create_server(("127.0.0.1", free_port())) as other:
        port = other.getsockname()[1]
        text = startup.message(ListenerError(INBOUND, unbound(port)))
    assert text.startswith(f"it cannot listen on 127.0.0.1:{port}: Address already in use, by ")
    assert f"(process {os.getpid()}); stop that, or give the proxy another port or address" in text


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (
            "cannot bind '[fd00::7]:80': Cannot assign requested address",
            r"it cannot listen on \[fd00::7\]:80: Cannot assign requested address; this machine does not",
        ),
        (
            "cannot bind '127.0.0.1:80': Permission denied",
            r"it cannot listen on 127.0.0.1:80: Permission denied; ports below 1024 .*; choose a higher one",
        ),
        (
            "reuse port cannot be changed during an update\n",
            f"Envoy refuses the listener {INBOUND}: reuse port cannot .* update; `koguma get proxies`",
        ),
    ],
)
def test_a_refusal_leads_to_the_next_step(details, text):
    assert re.match(text, startup.message(ListenerError(INBOUND, details)))
