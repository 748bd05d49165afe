"""Settings: which of several values wins, and what is said about wrong ones."""

import re

import msgspec
import pytest

from koguma.model.control_plane_info import Mode
from koguma.model.documents import BadDocument
from koguma.model.errors import Invalid
from koguma.runtime import settings
from koguma.runtime.settings import Settings


def load(file=None, environment=None, **flags) -> Settings:
    """The settings of a test that needs no data directory."""
    return settings.load(file and str(file), {"KOGUMA_DATA_DIR": "data", **(environment or {})}, flags)


@pytest.fixture
def file(tmp_path):
    """Writes a settings file and says where it is."""
    path = tmp_path / "koguma.yaml"

    def write(text):
        path.write_text(text)
        return path

    return write


def refused(source, environment=None, **flags) -> dict[str, str]:
    """What is said, by the source of the wrong value."""
    with pytest.raises(Invalid) as raised:
        load(source, environment, **flags)
    return {violation.field: violation.message for violation in raised.value.violations}


# Which one wins.

SOURCES = [
    ("the default", {}, "", {}, 5681),
    ("the file over the default", {}, "apiPort: 1001", {}, 1001),
    ("a variable over the file", {"KOGUMA_API_PORT": "1002"}, "apiPort: 1001", {}, 1002),
    ("a flag over a variable", {"KOGUMA_API_PORT": "1002"}, "apiPort: 1001", {"api_port": 1003}, 1003),
    ("a flag over the file", {}, "apiPort: 1001", {"api_port": 1003}, 1003),
]


@pytest.mark.parametrize(("environment", "text", "flags", "port"), [s[1:] for s in SOURCES], ids=lambda _: "")
def test_flags_win_over_variables_over_the_file_over_defaults(file, environment, text, flags, port):
    source = file(text) if text else None
    assert load(source, environment, **flags).api_port == port


def test_sources_are_mixed_setting_by_setting(file):
    loaded = load(file("zoneName: east\nhistory: 1h\n"), {"KOGUMA_ZONE_NAME": "west"}, api_host="0.0.0.0")
    assert (loaded.zone_name, loaded.history, loaded.api_host, loaded.log_level) == (
        "west",
        "1h",
        "0.0.0.0",
        "info",
    )


def test_a_list_is_replaced_and_not_added_to(file):
    source = file("hostnames: [a.example]")
    assert load(source).hostnames == ("a.example",)
    assert load(source, {"KOGUMA_HOSTNAMES": "b.example, c.example,"}).hostnames == ("b.example", "c.example")
    assert load(source, hostnames=("d.example", "e.example")).hostnames == ("d.example", "e.example")
    assert load(source, hostnames=()).hostnames == ("a.example",)  # the flag was not given


def test_a_flag_can_switch_off_what_the_file_switches_on(file):
    source = file("skipDefaultMesh: true")
    assert load(source).skip_default_mesh
    assert not load(source, skip_default_mesh=False).skip_default_mesh
    assert load(source, skip_default_mesh=None).skip_default_mesh


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("TRUE", True), ("false", False), ("0", False)]
)
def test_a_variable_switches_in_several_spellings(text, value):
    assert load(None, {"KOGUMA_LOCALHOST_IS_ADMIN": text}).localhost_is_admin is value


def test_every_setting_but_access_can_come_from_a_variable():
    values = {"int": "7", "tuple": "x"}
    for field in msgspec.structs.fields(Settings):
        if field.name in (
            "access",
            "mode",
            "global_address",
            "global_ca",
            "zone_token_file",
            "accept_global",
            "log_level",
            "log_format",
            "history",
            "service_grace",
            "proof_interval",
            "proxy_stay",
            "ca_rotation",
            "mesh_service_cidr",
            "mesh_external_service_cidr",
            "mesh_multi_zone_service_cidr",
            "virtual_ipv6_cidr",
            "outgoing_services",
            "feature_gates",
            "service_account_issuer",
            "audit_level",
            "traces_endpoint",
            "traces_ratio",
        ):
            continue  # not from a variable, or not any text
        is_switch = isinstance(field.default, bool)
        text = str(not field.default) if is_switch else values.get(type(field.default).__name__, "text")
        partner = {"KOGUMA_TLS_CERT_FILE": "c", "KOGUMA_TLS_KEY_FILE": "k"} if "tls_" in field.name else {}
        loaded = load(None, {**partner, f"KOGUMA_{field.name.upper()}": text})
        assert getattr(loaded, field.name) not in (field.default, None), field.name


def test_unknown_variables_are_left_alone():
    assert load(None, {"KOGUMA_ADDRESS": "http://x", "KOGUMA_NO_SUCH": "1"}) == load()


def test_access_is_in_the_file_alone(file):
    source = file("access: {bindings: [{role: view, groups: [developers]}]}")
    (binding,) = load(source, {"KOGUMA_ACCESS": "nonsense"}).access.bindings
    assert (binding.role, binding.groups) == ("view", ("developers",))


def test_without_a_data_directory_there_is_one_in_the_users_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    loaded = settings.load(None, {}, {})
    assert loaded.data_dir == str(tmp_path / "koguma")
    assert loaded.store_url == f"sqlite:///{tmp_path}/koguma/koguma.db"


# What is wrong is named with its source.

WRONG = [
    ("apiPort: 70000", {}, {}, "{file}: apiPort", "should be less than or equal to 65535"),
    ("zonName: east", {}, {}, "{file}: zonName", 'unknown field "zonName"; did you mean "zoneName"?'),
    ("mode: both", {}, {}, "{file}: mode", "should be one of [zone global]"),
    ("hostnames: [1]", {}, {}, "{file}: hostnames[0]", 'must be of type string: "integer"'),
    ("apiPort: null", {}, {}, "{file}: apiPort", 'must be of type integer: "null"'),
    ("access: {bindings: [{}]}", {}, {}, "{file}: access.bindings[0].role", "is required"),
    ("", {"KOGUMA_API_PORT": "http"}, {}, "KOGUMA_API_PORT", 'must be of type integer: "string"'),
    ("", {"KOGUMA_API_PORT": "²"}, {}, "KOGUMA_API_PORT", 'must be of type integer: "string"'),
    ("", {"KOGUMA_SKIP_DEFAULT_MESH": "yes"}, {}, "KOGUMA_SKIP_DEFAULT_MESH", "must be of type boolean"),
    ("", {"KOGUMA_HISTORY": "a month"}, {}, "KOGUMA_HISTORY", "must be a duration"),
    ("", {"KOGUMA_LOG_LEVEL": "loud"}, {}, "KOGUMA_LOG_LEVEL", "should be one of [debug info warning error]"),
    ("", {}, {"api_tls_port": -1}, "--api-tls-port", "should be greater than or equal to 0"),
    ("", {}, {"zone_name": "East_1"}, "--zone-name", "DNS"),
    ("", {}, {"system_namespace": "No/Such"}, "--system-namespace", "must be a namespace"),
    ("", {}, {"tls_cert_file": "c.pem"}, "--tls-cert-file", "goes with tlsKeyFile: give both or none"),
    ("tlsKeyFile: k.pem", {}, {}, "tlsCertFile", "goes with tlsKeyFile: give both or none"),
]


@pytest.mark.parametrize(("text", "environment", "flags", "field", "message"), WRONG, ids=lambda _: "")
def test_a_wrong_value_names_its_source(file, text, environment, flags, field, message):
    source = file(text) if text else None
    loaded = refused(source, environment, **flags)
    assert list(loaded) == [field.format(file=source)]
    assert message in loaded[field.format(file=source)]


def test_the_source_that_would_have_won_is_the_one_that_is_named(file):
    source = file("apiPort: 70000")
    assert list(refused(source, {"KOGUMA_API_PORT": "x"})) == ["KOGUMA_API_PORT"]
    assert list(refused(source, {"KOGUMA_API_PORT": "x"}, api_port=-1)) == ["--api-port"]
    assert load(source, {"KOGUMA_API_PORT": "80"}).api_port == 80


def test_all_that_is_wrong_is_said_at_once(file):
    source = file("apiPort: 70000\nzonName: east\n")
    loaded = refused(source, {"KOGUMA_XDS_PORT": "x"}, history="soon")
    assert set(loaded) == {f"{source}: apiPort", f"{source}: zonName", "KOGUMA_XDS_PORT", "--history"}


# The file.


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("apiPort: [1\nmode: zone\n", 2, 5, "did not find expected"),
        ("mode: zone\n\tapiPort: 1\n", 2, 1, "YAML forbids tabs"),
        ("mode: zone\nmode: global\n", 2, 1, 'key "mode" is given twice'),
        ("store: !python/object:os.system x\n", 1, 8, "is not supported"),
    ],
)
def test_a_syntax_error_in_the_file_has_a_place(file, text, line, column, problem):
    source = file(text)
    with pytest.raises(BadDocument) as raised:
        load(source)
    assert (raised.value.line, raised.value.column) == (line, column)
    assert raised.value.detail.startswith(f"{source}:{line}:{column}: ")
    assert problem in raised.value.detail


@pytest.mark.parametrize("text", ["- mode: zone\n", "zone\n", "mode: zone\n---\nmode: global\n", ""])
def test_the_file_is_one_mapping(file, text):
    source = file(text)
    assert refused(source) == {str(source): "must be one mapping of settings"}


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert refused(tmp_path / "none.yaml") == {str(tmp_path / "none.yaml"): "No such file or directory"}


# Gates.


@pytest.mark.parametrize(
    ("text", "is_on"),
    [("", True), ("ResourceID=true", True), ("ResourceID=false", False), (" ResourceID=false , ", False)],
)
def test_a_gate_is_on_unless_switched_off(text, is_on):
    assert load(feature_gates=text).gate("ResourceID") is is_on


@pytest.mark.parametrize("text", ["ResourceID", "ResourceID=no", "Other=true", "ResourceID=true,Other=false"])
def test_what_is_no_gate_is_refused(text):
    loaded = refused(None, None, feature_gates=text)
    assert list(loaded) == ["--feature-gates"]
    assert (
        "is no gate; write NAME=true or NAME=false with a name of NamespaceContents, ResourceID"
        in loaded["--feature-gates"]
    )


# What is shown.


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://koguma:s3cret@db/koguma", "postgresql://koguma:*****@db/koguma"),
        (
            "postgresql://koguma:a:b%40c@db:5432/k?sslmode=require",
            "postgresql://koguma:*****@db:5432/k?sslmode=require",
        ),
        ("postgresql://:s3cret@db/koguma", "postgresql://:*****@db/koguma"),
        ("postgresql://db/k?password=s3cret&x=1", "postgresql://db/k?password=*****&x=1"),
        ("postgresql://koguma@db/koguma", "postgresql://koguma@db/koguma"),
        ("sqlite:////srv/koguma.db", "sqlite:////srv/koguma.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_password_is_masked_wherever_settings_are_shown(url, shown):
    loaded = load(store=url)
    assert loaded.store_url == url
    assert loaded.shown()["store"] == shown
    assert "s3cret" not in str(loaded.shown())


def test_all_settings_are_shown_in_the_spelling_of_the_file(file):
    shown = load().shown()
    assert list(shown) == [field.encode_name for field in msgspec.structs.fields(Settings)]
    text = msgspec.json.encode({name: value for name, value in shown.items() if name != "store"}).decode()
    assert load(file(text)) == load()


# What follows from settings.


def test_the_place_follows_from_the_mode():
    zone, above = load(zone_name="east").control_plane, load(mode="global", zone_name="east").control_plane
    assert (zone.mode, zone.zone, zone.origin) == (Mode.ZONE, "east", "zone")
    assert (above.mode, above.zone, above.origin) == (Mode.GLOBAL, "", "global")


def test_the_name_of_a_zone_does_not_matter_on_global():
    assert load(mode="global", zone_name="Not A Zone").control_plane.is_global


def test_a_zone_finds_global_by_an_address_and_a_token():
    settings = load(None, global_address="grpcs://global.example:5685", zone_token_file="t")
    assert settings.control_plane.federated
    for flags, words in (
        ({"global_address": "grpcs://global.example:5685"}, "zoneTokenFile: is needed with globalAddress"),
        ({"global_address": "https://x:5685", "zone_token_file": "t"}, "must be grpcs://HOST:PORT"),
        ({"global_address": "grpcs://x", "zone_token_file": "t"}, "must be grpcs://HOST:PORT"),
        ({"global_address": "grpcs://x:99999999", "zone_token_file": "t"}, "must be grpcs://HOST:PORT"),
        ({"zone_token_file": "t"}, "goes with globalAddress"),
        ({"global_ca": "ca.pem"}, "goes with globalAddress"),
        ({"mode": "global", "global_address": "grpcs://x:1", "zone_token_file": "t"}, "is for mode zone"),
    ):
        with pytest.raises(Invalid, match=re.escape(words)):
            load(None, **flags)
