"""`_top` and `_endpoints`: who may see them, bad parameters, and proxies that answer nothing or nonsense."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from koguma.api.survey_answers import AT_ONCE_MAX
from koguma.envoy import admin_channel
from koguma.fleet import envoy_survey
from koguma.model.resource import Key
from tests import build
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect
from tests.waiting import until

TOP = "/meshes/default/_top?seconds=0.1"
ENDPOINTS = "/meshes/default/meshservices/web/_endpoints?seconds=0.1"
WEB = Key("Dataplane", "default", "default", "", "web-1")
OURS = ["feature-access-log-pipe", admin_channel.FEATURE]
ROLES = """
access:
  roles:
    - name: proxies
      rules: [{verbs: [list], resources: [dataplanes], meshes: [default]}]
    - name: services
      rules: [{verbs: [get, list], resources: [meshservices], meshes: [default]}]
  bindings:
    - {role: proxies, users: [paul]}
    - {role: services, users: [sue]}
    - {role: proxies, users: [both]}
    - {role: services, users: [both]}
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalControlPlane]:
    directory = tmp_path_factory.mktemp("s")
    file = directory / "settings.yaml"
    file.write_text(ROLES)
    with LocalControlPlane(directory, str(file)) as plane:
        for name in ("web-1", "web-2"):
            document = build.dataplane(name, inbound=[build.inbound("web", 80 + int(name[-1]))])
            assert plane("PUT", f"/meshes/default/dataplanes/{name}", document).status == 201
        service = build.mesh_service("web", build.port(81), build.port(82))
        assert plane("PUT", "/meshes/default/meshservices/web", service).status in (200, 201)
        connect(plane, name="web-1", features=OURS)
        connect(plane, name="web-2")
        yield plane


def as_user(plane: LocalControlPlane, name: str) -> dict[str, str]:
    token = plane("POST", "/tokens/user", {"name": name, "validFor": "1h"}).text
    return {"Authorization": f"Bearer {token}"}


@contextlib.contextmanager
def agent(plane: LocalControlPlane, answer: bytes) -> Iterator[None]:
    """An agent of web-1 that gives this answer to whatever it is asked."""
    token = plane.dataplane_token(name="web-1")
    opened = asyncio.Event()

    async def serve() -> None:
        tls = ssl.create_default_context(cafile=plane.data_dir / "ca.pem")
        url = f"https://127.0.0.1:{plane.plane.ports['dp']}{admin_channel.PATH}"
        query, headers = {"mesh": "default", "name": "web-1"}, {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, params=query, headers=headers, ssl=tls) as channel,
        ):
            await channel.receive_str()  # the greeting
            opened.set()
            async for message in channel:
                request = admin_channel.read_request(message.data)
                for frame in admin_channel.frames(request.number, answer):
                    await channel.send_bytes(admin_channel.encoded(frame))

    async def start() -> "asyncio.Task[None]":
        task = asyncio.create_task(serve())
        opening = asyncio.create_task(opened.wait())
        await asyncio.wait((task, opening), return_when=asyncio.FIRST_COMPLETED)
        assert opened.is_set(), task
        return task

    async def stop(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    channels = plane.plane._proxies._channels
    until(lambda: channels.of(WEB) is None, "the agent before has gone")
    task = plane.run(start())
    until(lambda: channels.of(WEB) is not None, "the control plane has the channel")
    try:
        yield
    finally:
        plane.run(stop(task))


@pytest.mark.parametrize(
    ("user", "top", "endpoints"),
    [("paul", 200, 403), ("sue", 403, 200), ("both", 200, 200), ("nobody", 403, 403)],
)
def test_who_may_see_figures(plane, user, top, endpoints):
    who = as_user(plane, user)
    assert plane("GET", TOP, **who).status == top
    assert plane("GET", ENDPOINTS, **who).status == endpoints
    assert plane("GET", "/meshes/other/_top", **who).status == 403
    assert plane("GET", TOP, Authorization="Bearer nonsense").status == 401


def test_names_of_callers_are_for_who_may_list_proxies(plane):
    hidden = plane("GET", ENDPOINTS, **as_user(plane, "sue")).json
    assert hidden["callers"]["unanswered"] == []
    assert hidden["callers"]["answered"] == 0
    shown = plane("GET", ENDPOINTS, **as_user(plane, "both")).json
    assert [each["name"] for each in shown["callers"]["unanswered"]] == ["web-1", "web-2"]


def test_services_that_a_user_may_not_list_are_no_rows(plane):
    name = "cluster.kri_msvc_default_default__web_81.upstream_rq_completed"
    with agent(plane, json.dumps({"stats": [{"name": name, "value": 5}]}).encode()):
        assert [row["name"] for row in plane("GET", TOP).json["items"]] == ["web"]
        assert plane("GET", TOP, **as_user(plane, "paul")).json["items"] == []


def test_proxies_that_cannot_be_asked_are_named_with_the_reason(plane):
    answer = plane("GET", f"{TOP}&by=proxies").json
    assert answer["items"] == []
    asked = answer["proxies"]
    assert (asked["of"], asked["asked"], asked["answered"], asked["isSample"]) == (2, 2, 0, False)
    reasons = {each["name"]: each["reason"] for each in asked["unanswered"]}
    assert "has not opened its channel" in reasons["web-1"]
    assert "Kuma's agent" in reasons["web-2"]
    shown = plane("GET", ENDPOINTS).json
    assert [each["state"] for each in shown["endpoints"]] == ["unknown", "unknown"]
    assert shown["state"] == "unknown"
    assert len(shown["servers"]["unanswered"]) == 2


def test_a_sample_says_that_it_is_one(plane):
    asked = plane("GET", f"{TOP}&limit=1").json["proxies"]
    assert (asked["of"], asked["asked"], asked["isSample"]) == (2, 1, True)
    assert plane("GET", f"{ENDPOINTS}&limit=1").json["callers"]["isSample"] is True


@pytest.mark.parametrize(
    "answer",
    [b"{}", b'{"stats":[{"name":5}],"cluster_statuses":[5]}', b"[[]]", b'{"stats":0,"cluster_statuses":0}'],
)
def test_an_answer_that_cannot_be_read_counts_as_none(plane, answer):
    with agent(plane, answer):
        top, endpoints = plane("GET", TOP), plane("GET", ENDPOINTS)
    assert (top.status, endpoints.status) == (200, 200)
    reasons = {each["name"]: each["reason"] for each in top.json["proxies"]["unanswered"]}
    assert "cannot be read" in reasons["web-1"]
    assert endpoints.json["state"] == "unknown"


def test_an_answer_of_nonsense_is_no_error(plane):
    host = {"address": {"pipe": {"path": "/x"}}, "stats": [{"name": "rq_error", "value": "x"}]}
    clusters = [{"name": "kri_msvc_default_default__web_81", "host_statuses": [host, {}]}]
    with agent(plane, json.dumps({"stats": [], "cluster_statuses": clusters}).encode()):
        shown = plane("GET", ENDPOINTS).json
    assert {each["address"] for each in shown["endpoints"]} >= {"", "/x"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=zones", '"by" must be one of services, proxies'),
        ("seconds=0", '"seconds" must be a number from 0.1 to 30'),
        ("seconds=31", '"seconds" must be'),
        ("seconds=nan", '"seconds" must be'),
        ("seconds=x", '"seconds" must be'),
        ("limit=0", '"limit" must be a whole number from 1 to 500'),
        ("limit=501", '"limit" must be'),
        ("limit=1e2", '"limit" must be'),
        ("limit=%C2%B2", '"limit" must be'),
        ("size=1", 'there is no query parameter "size" here'),
    ],
)
def test_bad_parameters_are_refused(plane, query, words):
    refused = plane("GET", f"/meshes/default/_top?{query}")
    assert refused.status == 400
    assert words in refused.text.replace("\\", "")
    if "by=" not in query and "size" not in query:
        assert plane("GET", f"/meshes/default/meshservices/web/_endpoints?{query}").status == 400


def test_what_does_not_exist(plane):
    assert plane("GET", "/meshes/nowhere/_top").status == 404
    assert plane("GET", "/meshes/nowhere/meshservices/web/_endpoints").status == 404
    missing = plane("GET", "/meshes/default/meshservices/wep/_endpoints")
    assert (missing.status, "did you mean" in missing.text) == (404, True)
    assert plane("GET", "/meshes/default/dataplanes/web-1/_endpoints").status == 404
    assert plane("POST", TOP).status == 405


def test_only_so_many_surveys_run_at_once(plane):
    path = "/meshes/default/_top?seconds=0.5"
    with agent(plane, b'{"stats": []}'), ThreadPoolExecutor(AT_ONCE_MAX + 4) as threads:
        answers = list(threads.map(lambda _: plane("GET", path), range(AT_ONCE_MAX + 4)))
    refused = [answer for answer in answers if answer.status == 503]
    assert {answer.status for answer in answers} == {200, 503}
    assert "are asking Envoys already" in refused[0].text
    assert plane("GET", TOP).status == 200, "turns come back"


def test_samples_are_spread_evenly():
    assert envoy_survey.spread("abcdef", 3) == ("a", "c", "e")
    assert envoy_survey.spread("ab", 3) == ("a", "b")
    assert envoy_survey.spread((), 3) == ()
