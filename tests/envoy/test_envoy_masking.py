"""What Envoy's admin interface shows leaves a machine without secrets."""

import json

import pytest

from koguma.envoy import admin_channel, admin_pages, masking, schema
from koguma.envoy.admin_pages import UnknownPage
from koguma.model.redacted import SHOWN

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJNZXNoIjoiZGVmYXVsdCJ9.c2lnbmF0dXJl"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----\n"
_BYTES, _TEXT, _MATCH = "inline_bytes", "inline_string", "string_match"
# Names that mean something else in other messages; these are hidden by the field that holds them.
_BY_PARENT = {"keys": "session_ticket_keys", "secret": "generic_secret", "secrets": "generic_secret"}


def masked(value):
    return json.loads(masking.masked_json(json.dumps(value).encode()))


def sensitive_fields():
    """The names of all fields that Envoy's messages mark as sensitive."""
    known = schema.load(schema.find_envoy())
    mark = known.extension("udpa.annotations.sensitive")
    options = known.message_class("google.protobuf.FieldOptions")
    messages = [
        message
        for file in known.files
        for message in known.pool.FindFileByName(file).message_types_by_name.values()
    ]
    while messages:
        message = messages.pop()
        messages += message.nested_types
        for field in message.fields:
            if options.FromString(field.GetOptions().SerializeToString()).Extensions[mark]:
                yield message.name, field.name


def test_every_field_that_envoy_marks_as_sensitive_is_hidden():
    found = set(sensitive_fields())
    assert len(found) > 20
    names = {_BY_PARENT.get(field, field) for message, field in found if message != "PrivateKeyProvider"}
    assert names <= masking.HIDDEN_FIELDS
    assert "private_key_provider" in masking.HIDDEN_FIELDS


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"private_key": {"inline_string": PEM}}, ("private_key", "inline_string")),
        ({"private_key": {"inline_bytes": "c2VjcmV0"}}, ("private_key", "inline_bytes")),
        ({"session_ticket_keys": {"keys": [{_BYTES: "x"}]}}, ("session_ticket_keys", "keys", 0, _BYTES)),
        ({"generic_secret": {"secret": {_TEXT: "x"}}}, ("generic_secret", "secret", _TEXT)),
        ({"header": {"key": "Authorization", "value": "abc"}}, ("header", "value")),
        ({"initial_metadata": [{"key": "authorization", "value": "x"}]}, ("initial_metadata", 0, "value")),
        ({"headers": [{"name": "x-api-key", _MATCH: {"exact": "k"}}]}, ("headers", 0, _MATCH, "exact")),
        ({"anything": PEM.strip()}, ("anything",)),
        ({"anything": TOKEN}, ("anything",)),
        ({"trusted_ca": {"inline_string": "ca"}}, ("trusted_ca", "inline_string")),
    ],
)  # fmt: skip
def test_secrets_are_hidden(value, path):
    shown = masked({"configs": [{"nested": value}]})["configs"][0]["nested"]
    for part in path:
        shown = shown[part]
    assert shown == SHOWN


def test_what_is_no_secret_stays():
    value = {
        "name": "authorization",
        "private_key": {"filename": "/etc/key.pem"},
        "secret": {"name": "mesh_ca", "sds_config": {"path_config_source": {"path": "/run/x"}}},
        "headers": [{"name": ":path", "string_match": {"prefix": "/"}}, {"key": "x-team", "value": "shop"}],
        "port_value": 80,
        "enabled": True,
        "nothing": None,
    }
    assert masked(value) == value


def test_texts_lose_tokens_and_keys_wherever_they_stand():
    text = f"a{PEM}b Bearer abcdefghijkl {TOKEN}! Basic rules"
    assert masking.masked_text(text) == f"a{SHOWN}\nb Bearer {SHOWN} {SHOWN}! Basic rules"


def test_a_dump_that_is_no_json_is_refused():
    for text in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(masking.NotJson):
            admin_channel.masked("/config_dump", text)


@pytest.mark.parametrize(
    "path",
    [
        "/quitquitquit",
        "/logging?level=trace",
        "/healthcheck/fail",
        "/drain_listeners",
        "/stats/../quitquitquit",
        "/stats#/quitquitquit",
        "//stats",
        "stats",
        "/config_dump?nonsense=1",
        "/stats?usedonly&x=y",
        "/runtime_modify?a=b",
        "/stats/recentlookups/clear",
        f"/stats?filter={'a' * 5000}",
        "/stats\r\nX: y",
        "",
    ],
)
def test_no_other_page_can_be_asked_for(path):
    with pytest.raises(UnknownPage):
        admin_pages.checked(path)


def test_a_path_is_written_anew():
    path = admin_pages.checked("/stats?format=json&usedonly&filter=a b%0d%0aX#c")
    assert path == "/stats?format=json&usedonly=&filter=a+b%0D%0AX%23c"
    assert admin_pages.checked("/clusters") == "/clusters"


@pytest.mark.parametrize("size", [0, 1, admin_channel.CHUNK_BYTES, 3 * admin_channel.CHUNK_BYTES + 7])
def test_an_answer_in_frames_is_the_same_again(size):
    answer = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    frames = [
        admin_channel.read_frame(admin_channel.encoded(frame)) for frame in admin_channel.frames(7, answer)
    ]
    assert b"".join(frame.chunk for frame in frames) == answer
    assert [frame.type.name for frame in frames] == ["PART"] * (len(frames) - 1) + ["LAST"]
    assert {frame.number for frame in frames} == {7}


@pytest.mark.parametrize("message", [b"", b"\0\0\0\1", b"\0\0\0\1\3x"])
def test_what_is_no_frame_is_refused(message):
    with pytest.raises(admin_channel.BadChannelMessage):
        admin_channel.read_frame(message)


@pytest.mark.parametrize("message", ["", "[]", '{"number": -1, "path": ""}', '{"number": 1}', "[" * 9999])
def test_what_is_no_request_is_refused(message):
    with pytest.raises(admin_channel.BadChannelMessage):
        admin_channel.read_request(message)
