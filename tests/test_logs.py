"""Logs: one shape for all events, and no secret in any of them."""

import base64
import json
import logging

import pytest
import structlog

from koguma.model.redacted import Redacted
from koguma.runtime import logs
from koguma.runtime.logs import MASK
from tests.control_plane import LocalControlPlane

pytestmark = pytest.mark.expected_errors(".")  # they log all sorts of things

TOKEN = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg":"RS256","kid":"1"}', b'{"Name":"dora","Groups":[]}', b"0123456789abcdef")
)
PEM_BODY = "MIIEpAIBAAKCAQEAx1y2z3"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----"


@pytest.fixture
def written(capsys):
    """Configures logs, and gives back a way to read what they have written since."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    parts = []

    def log_text():
        parts.append(capsys.readouterr().err)
        return "".join(parts)

    def configure(level="info", log_format="json"):
        logs.configure(level, log_format)
        return log_text

    yield configure
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def masked(**event):
    return dict(logs.masked(None, "info", event))


@pytest.mark.parametrize(
    "name",
    [
        *("token", "admin_token", "secret", "client_secret", "password", "db_password_file", "Authorization"),
        *("private_key", "privateKey", "key", "data", "credential", "credentials", "TOKEN"),
    ],
)
def test_a_field_that_sounds_like_a_secret_is_masked(name):
    assert masked(**{name: "hunter2"}) == {name: MASK}
    assert masked(**{name: ["hunter2"]}) == {name: MASK}
    assert masked(**{name: b"hunter2"}) == {name: MASK}


@pytest.mark.parametrize(
    "name", ["tokens", "keys", "path", "user", "revision", "data_dir", "event", "reason"]
)
def test_other_fields_are_shown(name):
    assert masked(**{name: "hunter2"}) == {name: "hunter2"}


def test_what_is_empty_hides_nothing():
    assert masked(token="", password=None) == {"token": "", "password": None}


TEXTS = [
    (f"Bearer {TOKEN} was sent", f"Bearer {MASK} was sent"),
    (f"{TOKEN},{TOKEN}", f"{MASK},{MASK}"),
    (f"key:\n{KEY}\nand more", f"key:\n{MASK}\nand more"),
    (f"cut off: {KEY.partition('-----END')[0]}", f"cut off: {MASK}\n"),
    (KEY.replace("RSA ", "EC "), MASK),
    (KEY.replace("RSA ", ""), MASK),
    ("postgresql://koguma:s3cret@db/koguma", f"postgresql://{MASK}@db/koguma"),
    ("at postgres://:s3cret@db and http://a:b@c/", f"at postgres://{MASK}@db and http://{MASK}@c/"),
]


@pytest.mark.parametrize(("text", "shown"), TEXTS, ids=range(len(TEXTS)))
def test_a_text_that_looks_like_a_secret_is_masked(text, shown):
    assert logs.masked_text(text) == shown
    assert masked(reason=text) == {"reason": shown}


@pytest.mark.parametrize(
    "text",
    [
        "eyJ is how tokens begin",
        "postgresql://koguma@db/koguma",
        "sqlite:////srv/koguma.db",
        "http://localhost:5681/meshes?name=a@b",
        "-----BEGIN CERTIFICATE-----",
        "kri_mt_shop_default__backend-is-quick_",
    ],
)
def test_a_text_that_only_resembles_a_secret_is_shown(text):
    assert logs.masked_text(text) == text


def test_an_exception_is_masked_too(written):
    log_text = written()
    try:
        int(TOKEN)
    except ValueError:
        structlog.get_logger("koguma").exception("request failed", request="a-1")
    (line,) = log_text().splitlines()
    event = json.loads(line)
    assert TOKEN not in line
    assert MASK in event["exception"]
    assert "ValueError" in event["exception"]


def test_a_redacted_text_stays_so_in_a_log(written):
    log_text = written()
    structlog.get_logger("koguma").info("made", it=Redacted("hunter2"), them=[Redacted("hunter2")])
    event = json.loads(log_text())
    assert (event["it"], event["them"]) == (MASK, [MASK])


def test_every_line_is_json_with_time_level_and_logger(written):
    log_text = written()
    structlog.get_logger("koguma.store").info("store is back", revision=14)
    structlog.get_logger("koguma.api").warning("two\nlines", path="/ü")
    events = [json.loads(line) for line in log_text().splitlines()]
    assert [(e["event"], e["level"], e["logger"]) for e in events] == [
        ("store is back", "info", "koguma.store"),
        ("two\nlines", "warning", "koguma.api"),
    ]
    assert events[0]["revision"] == 14
    assert all(event["timestamp"].endswith("Z") for event in events)


def test_libraries_log_in_the_same_shape_and_masked(written):
    log_text = written()
    logging.getLogger("asyncio").error("Error with %s", f"Authorization: Bearer {TOKEN}")
    (event,) = (json.loads(line) for line in log_text().splitlines())
    assert event["event"] == f"Error with Authorization: Bearer {MASK}"
    assert (event["level"], event["logger"]) == ("error", "asyncio")


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")],
)
def test_the_level_decides_what_is_written(written, level, shown):
    log_text = written(level)
    for logger in (structlog.get_logger("koguma"), logging.getLogger("library")):
        for name in ("debug", "info", "warning", "error"):
            getattr(logger, name)(name[0])
    assert "".join(json.loads(line)["event"] for line in log_text().splitlines()) == 2 * shown


def test_text_is_for_people_and_masked_as_well(written):
    log_text = written(log_format="text")
    structlog.get_logger("koguma").info("store opened", store="postgresql://koguma:s3cret@db/k", token="x1")
    assert "store opened" in log_text()
    assert "s3cret" not in log_text()
    assert "x1" not in log_text()
    with pytest.raises(json.JSONDecodeError):
        json.loads(log_text())


def test_auto_is_json_where_nobody_looks(written):
    log_text = written(log_format="auto")
    structlog.get_logger("koguma").info("started")
    assert json.loads(log_text())["event"] == "started"


def test_an_answered_request_is_found_in_the_log_by_its_id(written, tmp_path):
    with LocalControlPlane(tmp_path) as plane:
        log_text = written()
        refused = plane("PUT", "/meshes/No", {"type": "Mesh", "name": "No"}, Authorization=f"Bearer {TOKEN}")
        missing = plane("GET", "/meshes/nowhere")
        fine = plane("GET", "/meshes/default")
        plane(
            "PUT", "/meshes/default/secrets/s", {"type": "Secret", "mesh": "default", "data": "aHVudGVyMg=="}
        )
    lines = [json.loads(line) for line in log_text().splitlines()]
    events = {event["request"]: event for event in lines if event["event"] == "request answered"}
    for answer, method in ((refused, "PUT"), (missing, "GET")):
        event = events[answer.headers["Koguma-Request-Id"]]
        assert answer.json["instance"] == event["request"]
        assert (event["method"], event["status"]) == (method, answer.status)
    assert fine.headers["Koguma-Request-Id"] not in events  # a read that went well is only counted
    assert len({answer.headers["Koguma-Request-Id"] for answer in (refused, missing, fine)}) == 3
    assert not any(text in log_text() for text in (TOKEN, "aHVudGVyMg==", "hunter2"))
