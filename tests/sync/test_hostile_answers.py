"""A zone that lies about proxies, or answers questions wrongly or never, does no harm to Global."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from koguma.fleet import reported_states
from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.reported_states import ReportedStates
from koguma.fleet.state_reports import encoded
from koguma.main import all_kinds
from koguma.model.errors import KogumaError, Unavailable
from koguma.model.proxy_report import STATE_BYTES_MAX, ProxyReport
from koguma.model.resource import Key, Resource
from koguma.sync import liveness, mapping
from koguma.sync.protocol import messages
from koguma.sync.protocol.messages import (
    Alive,
    AnswerPart,
    EncodedState,
    NoAnswer,
    Objects,
    ProxyStates,
    SyncedObject,
    ZoneQuestion,
)
from koguma.xds.contract import Rejection
from tests import build
from tests.sync.lying_zone import LyingZone
from tests.sync.test_zones import Federation, _token
from tests.waiting import until

pytestmark = pytest.mark.slow

KINDS = all_kinds()
START = datetime(2026, 1, 1, tzinfo=UTC)
WEB = Key("Dataplane", "default", "east", "", "web-1")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("g"))
    with federation.stack:
        yield federation


def _liar(federation: Federation, zone: str = "east") -> LyingZone:
    ca = (federation.directory / "global" / "ca.pem").read_bytes()
    return LyingZone(federation.sync_port, ca, _token(federation.top, zone), zone)


def _state(key: Key = WEB, **fields: Any) -> ProxyState:
    return ProxyState(
        **{"key": key, "core_name": key.name, "instance": "cp-1", "connected_at": START, **fields}
    )


def _dataplane() -> Resource:
    written = Resource(
        kind="Dataplane",
        mesh="default",
        zone="east",
        name="web-1",
        core_name="web-1",
        spec={"networking": build.dataplane("web-1", "web")["networking"]},
        creation_time="2026-01-01T00:00:00Z",
    )
    sent = mapping.upward(written, KINDS["Dataplane"], "east")
    assert sent is not None
    return sent


def _shown(federation: Federation) -> dict[str, Any]:
    return {each["name"]: each for each in federation.top("GET", "/_proxies").json["items"]}


class _Answering:
    """Answers each question of Global by what `answer` gives, in a thread."""

    def __init__(self, zone: LyingZone, answer: Any) -> None:
        self.asked: list[ZoneQuestion] = []
        self._zone, self._answer = zone, answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for message in self._zone.heard():
                if isinstance(message, ZoneQuestion):
                    self.asked.append(message)
                    for part in self._answer(message):
                        self._zone.say(part)
        except Exception:  # noqa: BLE001 - the stream has ended
            return


def test_it_speaks_of_its_own_proxies_alone(federation: Federation) -> None:
    with _liar(federation) as zone:
        zone.greet(features=(messages.QUESTIONS,))
        lies = [
            (WEB._replace(zone="west"), _state(WEB._replace(zone="west"))),
            (WEB._replace(zone=""), _state(WEB._replace(zone=""))),
            (WEB._replace(kind="MeshTimeout"), _state(WEB._replace(kind="MeshTimeout"))),
            (WEB._replace(name="web-2"), _state(WEB)),
        ]
        states = [EncodedState(key, msgspec.json.encode(state)) for key, state in lies]
        broken = [EncodedState(WEB._replace(name="web-3"), data) for data in (b"{", b"7", b"[" * 5000)]
        good = EncodedState(
            WEB, msgspec.json.encode(_state(core_name="all-mine", identifier="kri_dp____mine_"))
        )
        zone.say(msgspec.msgpack.encode({"type": "weather", "is": "fine"}))  # of a later version
        zone.say(ProxyStates(7, (*states, *broken, good), (WEB._replace(zone="west"),)))
        until(lambda: len(_shown(federation)) == 1, "its own is shown")
        (shown,) = _shown(federation).values()
        # How Global calls it is Global's business.
        assert shown["name"].startswith("web-1-")
        assert (shown["zone"], shown["kri"], shown["revision"]) == ("east", "", 7)
        zone.say(ProxyStates(8, (), (WEB,)))
        until(lambda: not _shown(federation), "it is taken back")
    until(lambda: "east" not in str(_shown(federation)), "it is gone")


def test_wrong_answers_are_errors_with_the_zone_in_them(federation: Federation) -> None:
    answers: list[Any] = []

    def answer(question: ZoneQuestion) -> list[Any]:
        return [msgspec.structs.replace(each, number=question.number) for each in answers]

    with _liar(federation) as zone:
        zone.greet(kinds=(), features=(messages.QUESTIONS,))
        sent = _dataplane()
        zone.say(Objects(1, (SyncedObject(sent.key, msgspec.json.encode(sent)),)))
        path = f"/meshes/default/dataplanes/{sent.core_name}"
        until(lambda: federation.top("GET", path).status == 200, "its Dataplane is stored")
        answering = _Answering(zone, answer)
        for given, below, status, words in (
            (AnswerPart(0, b"{not json", is_last=True), "/_rules", 502, "no JSON"),
            (AnswerPart(0, b"[" * 100_000, is_last=True), "/_rules", 502, "no JSON"),
            (AnswerPart(0, b"{not json", is_last=True), "/xds", 502, "no JSON"),
            (
                NoAnswer(0, "NotFound", "it is not there"),
                "/_rules",
                404,
                'zone "east" answers: it is not there',
            ),
            (NoAnswer(0, "SystemExit", "boom"), "/_rules", 503, 'zone "east" answers: boom'),
            (NoAnswer(0, "Unauthenticated", "boom"), "/stats", 503, "boom"),
        ):
            answers[:] = [given]
            refused = federation.top("GET", path + below)
            assert (refused.status, words in refused.json["detail"]) == (status, True), refused.text
        secret = {
            "configs": [{"@type": "x.SecretsConfigDump", "inline_string": "-----BEGIN PRIVATE KEY-----"}]
        }
        answers[:] = [AnswerPart(0, msgspec.json.encode(secret), is_last=True)]
        assert "PRIVATE KEY" not in federation.top("GET", f"{path}/xds").text
        assert all(len(question.body) < 1000 for question in answering.asked)


def test_a_zone_that_never_answers_keeps_others_from_nothing(federation: Federation) -> None:
    server = federation.top.plane._sync.server
    with _liar(federation) as zone:
        zone.greet(features=(messages.QUESTIONS,))
        until(lambda: "east" in server.states(), "it is connected")

        async def asked() -> str:
            try:
                await server.ask("east", "page", b"", 100, 0.01)
            except Unavailable as error:
                return error.detail
            return ""

        assert "did not answer within" in federation.top.run(asked())
        assert federation.top("GET", "/zones/east/_overview").json["connection"]["online"]
        # Its answer comes too late: it is dropped. What nobody asked for ends the stream.
        zone.say(AnswerPart(1, b"late", is_last=True))
        zone.say(AnswerPart(9, b"x" * 1000, is_last=True))
        assert "nobody asked" in zone.end()


def test_who_waits_is_told_that_the_zone_has_gone(federation: Federation) -> None:
    server = federation.top.plane._sync.server
    with _liar(federation) as zone:
        zone.greet(features=(messages.QUESTIONS,))
        until(lambda: "east" in server.states(), "it is connected")

        async def both() -> BaseException | bytes:
            asked = asyncio.ensure_future(server.ask("east", "page", b"", 100, 20.0))
            await asyncio.sleep(0.1)
            zone._call.cancel()
            (answer,) = await asyncio.gather(asked, return_exceptions=True)
            return answer

        answer = federation.top.run(both())
        assert isinstance(answer, Unavailable)
        assert "has ended" in answer.detail


def test_a_zone_that_hangs_is_offline_soon(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(liveness, "SILENT_LOOKS", 60)  # on a busy machine signs of life come late
    with _liar(federation) as zone:
        zone.greet(features=(messages.ALIVE,))
        server = federation.top.plane._sync.server
        until(lambda: "east" in server.states(), "it is connected")
        heard = zone.heard()
        assert next(each for each in heard if isinstance(each, Alive)) == Alive()
        for _ in range(5):  # signs of life keep it
            zone.say(Alive())
            assert next(each for each in heard if isinstance(each, Alive)) == Alive()
        assert "no sign of life" in zone.end()
    until(lambda: "east" not in server.states(), "it is offline")


def test_a_zone_of_an_earlier_version_is_not_asked(federation: Federation) -> None:
    with _liar(federation) as zone:
        zone.greet()
        server = federation.top.plane._sync.server
        until(lambda: "east" in server.states(), "it is connected")
        with pytest.raises(KogumaError, match="of version 1, which answers no questions"):
            federation.top.run(server.ask("east", "page", b"", 100, 1.0))


def test_a_zone_asks_nothing(federation: Federation) -> None:
    with _liar(federation) as zone:
        zone.greet()
        zone.say(ZoneQuestion(1, "page", b"", 100, 1.0))
        assert "nobody answers questions here" in zone.end()


def test_states_are_bounded_by_number_and_size(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = federation.top.plane._zones._reported._context
    data = msgspec.json.encode(_state())
    monkeypatch.setattr(reported_states, "STATES_MAX", 10)
    states = ReportedStates(context, lambda: START)
    keys = [WEB._replace(name=f"web-{number}") for number in range(20)]
    states.receive("east", ProxyReport(1, [(key, msgspec.json.encode(_state(key))) for key in keys]))
    assert len(list(states)) == len(states.connected) == 10
    monkeypatch.setattr(reported_states, "BYTES_MAX", 3 * len(data))
    states = ReportedStates(context, lambda: START)
    for _ in range(3):  # the same ones again take no more room
        states.receive("east", ProxyReport(1, [(key, msgspec.json.encode(_state(key))) for key in keys]))
    assert 1 <= len(list(states)) <= 3
    states.disconnect("east")
    assert not states.connected
    # A state of a proxy that rejected much is sent without the details.
    much = tuple(Rejection("listener", ("x" * 500,) * 20, "y" * 5000, 1) for _ in range(50))
    assert len(encoded(_state(rejections=much))) <= STATE_BYTES_MAX
    assert len(encoded(_state(rejections=much, instance="i" * 300))) <= STATE_BYTES_MAX
