"""What is made of Envoy's command line, its log, its end, its admin interface and its directory."""

import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koguma.core.build import internals
from koguma.dp import admin, dns_records, envoy, workdir
from koguma.dp.admin import Activity, Admin, ListenerStatus
from koguma.dp.dns import DnsServer
from koguma.dp.drain import drain
from koguma.dp.envoy import EnvoyExit, EnvoySettings
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted

REFUSED = (
    r"[critical][main] error `goo.gle/debugonly   \nnode {\n  id: \"x\"\n}\n: Proto constraint validation"
    r" failed (BootstrapValidationError.Node: odd)` initializing config \'goo.gle/debugstr  \n  b.json\'"
)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "--drain-time-s 30 --drain-strategy immediate --log-level warning"),
        ({"concurrency": 2}, "--concurrency 2 --log-level warning"),
        ({"drain_seconds": 0.0}, "--drain-time-s 1 "),
        ({"log_level": "debug"}, "--log-level debug --file-flush"),
        ({"log_level": "off"}, "--log-level off --component-log-level config:warning,upstream:warning "),
    ],
)
def test_the_command_line_of_envoy(settings, words):
    directory = " ".join(
        envoy.arguments(EnvoySettings(binary=Path("/bin/envoy"), **settings), Path("/w/bootstrap.json"))
    )
    assert directory.startswith("/bin/envoy --config-path /w/bootstrap.json --disable-hot-restart ")
    assert words in directory


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (EnvoyExit(-9, 3.21), "Envoy was ended by SIGKILL after 3.2 s"),
        (EnvoyExit(-99, 3.21), "Envoy was ended by signal 99 after 3.2 s"),
        (EnvoyExit(1, 0.04), "Envoy ended with code 1 after 0.0 s"),
        (EnvoyExit(1, 0.04, refusal="odd"), "Envoy refuses its bootstrap: odd"),
    ],
)
def test_an_end_is_told_in_a_sentence(ended, expected):
    assert ended.message == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (REFUSED, "Proto constraint validation failed (BootstrapValidationError.Node: odd)"),
        (
            r"[critical][main] error `cannot bind \'/w/a.sock\': No such file` initializing config \'b\'",
            "cannot bind '/w/a.sock': No such file",
        ),
        ("[warning][main] error `odd` happened", ""),
        ("error `odd` initializing config", ""),
    ],
)
def test_a_refusal_is_envoys_own_sentence(line, sentence):
    assert envoy.refusal_in(line) == sentence


@pytest.mark.parametrize(
    ("gauges", "activity"),
    [
        ({}, Activity()),
        ({"http.web.downstream_cx_active": 3, "listener.web.downstream_cx_active": 3}, Activity()),
        ({"http.web.downstream_rq_active": 2, "http.back.downstream_rq_active": 1}, Activity(3, 0)),
        (
            {"listener.db.downstream_cx_active": 2, "listener.db.worker_0.downstream_cx_active": 2},
            Activity(0, 2),
        ),
        (
            {
                "http.admin.downstream_rq_active": 1,
                "listener.admin.main_thread.downstream_cx_active": 1,
                "listener.admin.downstream_cx_active": 1,
                "http._kuma_dynamicconfig.downstream_rq_active": 1,
            },
            Activity(),
        ),
        ({"listener.127.0.0.1_80.downstream_cx_active": 1}, Activity(0, 1)),
        ({"listener._kuma_passthrough_outbound_ipv4.downstream_cx_active": 1}, Activity(0, 1)),
    ],
)
def test_requests_and_opaque_connections_keep_envoy_busy(gauges, activity):
    assert admin.read_activity(gauges) == activity
    assert activity.is_idle == (activity == Activity())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            r"[error][config] listener \'a.b\' failed to bind or apply socket options: cannot \'bind\'",
            ("a.b", "cannot 'bind'"),
        ),
        (r"[warning][upstream] lds: listener \'a\' config rejected: odd\n", ("a", "odd")),
        (r"[warning][upstream] lds: add/update listener \'a\'", None),
        ("listener 'a' config rejected: not a record", None),
    ],
)
def test_a_line_about_a_refused_listener_is_understood(line, expected):
    assert envoy.listener_error_in(line) == expected


def test_listeners_are_read_with_ports_and_paths():
    answer = {
        "listener_statuses": [
            {"name": "a", "local_address": {"socket_address": {"address": "10.0.0.7", "port_value": 80}}},
            {"name": "b", "local_address": {"socket_address": {"address": "::1", "port_value": 81}}},
            {"name": "c", "local_address": {"pipe": {"path": "/w/c.sock"}}},
            {"name": "d"},
        ]
    }
    assert list(admin.read_listeners(answer)) == [
        ListenerStatus("a", "10.0.0.7:80"),
        ListenerStatus("b", "[::1]:81"),
        ListenerStatus("c", "/w/c.sock"),
    ]


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ([], "listens nowhere yet"),
        ([ListenerStatus("_kuma_dns", "127.0.0.1:53")], "listens nowhere yet"),
        ([ListenerStatus("kri_mgw_shop_east__edge_80", "10.0.0.4:80")], "serves 10.0.0.4:80"),
        ([ListenerStatus("kri_zi__east__ingress-1_", "10.0.0.5:10001")], "serves 10.0.0.5:10001"),
        (
            [
                ListenerStatus("kri_msvc_default_default__backend_80", "127.0.0.1:9001"),
                ListenerStatus("kri_msvc_default_default__backend_80:env=a,version=v2", "127.0.0.1:9002"),
                ListenerStatus("kri_dp_default_default__web-1_8080", "127.0.0.1:8080"),
                ListenerStatus("mine", "127.0.0.1:7"),
            ],
            (
                "serves 127.0.0.1:8080; reaches backend at 127.0.0.1:9001, backend (env=a,version=v2) at"
                " 127.0.0.1:9002; listens: mine at 127.0.0.1:7"
            ),
        ),
        (
            [ListenerStatus(f"kri_msvc_default_default__s{n}_80", f"127.0.0.1:{n}") for n in range(1, 8)],
            f"reaches {', '.join(f's{n} at 127.0.0.1:{n}' for n in range(1, 6))} and 2 more",
        ),
    ],
)
def test_listeners_are_told_in_a_line(listeners, expected):
    assert admin.summary(listeners) == expected


class AdminServer:
    """An admin interface that tells of one busy state after the other, and keeps what it was told."""

    def __init__(self, requests: list[int]) -> None:
        self.requests = requests
        self.paths: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/stats":
            self.paths.append(request.path_qs)
            return web.Response(text="OK")
        count = self.requests.pop(0) if len(self.requests) > 1 else self.requests[0]
        return web.json_response({"stats": [{"name": "http.web.downstream_rq_active", "value": count}]})


async def drained(directory: Path, requests: list[int], limit: float, notice: float = 0.0) -> Any:
    server = AdminServer(requests)
    runner = web.ServerRunner(web.Server(server.answer, access_log=None))
    await runner.setup()
    socket_path = directory / "admin.sock"
    await web.UnixSite(runner, str(socket_path)).start()
    try:
        return await drain(Admin(socket_path), lambda: True, limit, notice), server.paths
    finally:
        await runner.cleanup()


BEGIN = ["/healthcheck/fail", "/drain_listeners?graceful&skip_exit"]


async def test_a_quiet_envoy_stops_listening_and_is_asked_once_more(tmp_path):
    assert await drained(tmp_path, [2, 0, 1, 0], limit=5) == (True, [*BEGIN, "/drain_listeners"])


async def test_an_envoy_that_stays_busy_is_given_up_when_the_time_is_over(tmp_path):
    assert await drained(tmp_path, [1], limit=0.4) == (False, BEGIN)


async def test_an_envoy_that_is_gone_need_not_be_drained(tmp_path):
    assert await drain(Admin(tmp_path / "nobody.sock"), lambda: True, 5, 0) is False


async def test_records_are_taken_by_version_and_broken_ones_left(tmp_path):
    answers = [('{"records": [{"name": "a.mesh", "ips": ["241.0.0.1"]}], "ttl": 5}', "v1"), ("odd", "v2")]
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.headers.get("If-None-Match", ""))
        if not answers:
            return web.Response(status=304)
        body, etag = answers.pop(0)
        return web.Response(text=body, headers={"ETag": etag})

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    path, server, etag = tmp_path / "c.sock", DnsServer(()), ""
    etag = await dns_records._poll(path, server, etag)  # nobody is there yet
    await web.UnixSite(runner, str(path)).start()
    for _ in range(3):
        etag = await dns_records._poll(path, server, etag)
    await runner.cleanup()
    assert asked == ["", "v1", "v2"]
    assert len(server._records) == 1


def test_the_control_plane_knows_the_sockets_by_the_same_names():
    assert internals.READINESS_SOCKET == workdir.READINESS_SOCKET
    assert internals.CONFIG_SOCKET == workdir.DYNAMIC_CONFIG_SOCKET


def test_a_temporary_workdir_is_private_short_and_removed(tmp_path):
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    directory = workdir.create("", "a-name-" * 20, {"XDG_RUNTIME_DIR": str(deep)})
    assert len(str(directory.readiness)) <= 107
    directory.write_bootstrap(Redacted("{}"))
    assert (directory.path.stat().st_mode & 0o777, directory.bootstrap.stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    directory.remove()
    assert not directory.path.exists()


def test_a_given_workdir_stays_and_loses_what_is_ours(tmp_path):
    directory = workdir.create(str(tmp_path / "w"), "web-1", {})
    assert directory.warning == ""
    directory.write_bootstrap(Redacted("{}"))
    (directory.path / "mine").write_text("")
    directory.remove()
    assert [file.name for file in directory.path.iterdir()] == ["mine"]


def test_a_workdir_that_is_open_to_others_is_warned_of(tmp_path):
    (tmp_path / "w").mkdir(mode=0o755)
    assert "chmod 700" in workdir.create(str(tmp_path / "w"), "web-1", {}).warning


def test_a_workdir_whose_sockets_have_too_long_names_is_refused(tmp_path):
    with pytest.raises(KogumaError, match="too long a name; at most 78 bytes"):
        workdir.create(str(tmp_path / ("d" * 90)), "web-1", {})


def test_a_workdir_of_a_running_proxy_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind("kuma-readiness-reporter.sock")
        taken.listen()
        with pytest.raises(KogumaError, match="another `koguma dp run` uses it"):
            workdir.create(str(tmp_path), "web-1", {})


@pytest.mark.parametrize(
    ("path", "words"), [("/nowhere/envoy", "cannot be run: No such file"), ("/bin/true", "is no Envoy")]
)
async def test_what_is_no_envoy_is_told_before_anything_starts(path, words):
    with pytest.raises(KogumaError, match=words):
        await envoy.version(Path(path))
