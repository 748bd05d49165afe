"""The schema comes out of the binary, whole, and a file without one is refused with words."""

import os
import sys
from pathlib import Path

import pytest

from koguma.envoy import schema
from koguma.envoy.snapshot import TYPE_URLS

ENVOY = schema.find_envoy()
SCHEMA = schema.load(ENVOY)
WELL_KNOWN = ("Any", "Duration", "Empty", "ListValue", "Struct", "Timestamp", "UInt32Value", "Value")


def described(root: str) -> dict[str, bytes]:
    """The file of a message and all that it needs, as the binary has them."""
    found: dict[str, bytes] = {}
    left = [SCHEMA.descriptor(root).file]
    while left:
        file = left.pop()
        if file.name not in found:
            found[file.name] = file.serialized_pb
            left.extend(file.dependencies)
    return found


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """What a binary must contain to be an Envoy."""
    return {name: body for root in schema._ROOTS for name, body in described(root).items()}


def test_every_message_of_the_binary_is_there():
    assert len(SCHEMA.files) > 500
    for url in TYPE_URLS.values():
        assert SCHEMA.resolve(url).DESCRIPTOR.full_name == url.rpartition("/")[2]
    # Fields that published packages of these messages do not have yet.
    assert "stats_matcher" in SCHEMA.descriptor("envoy.config.cluster.v3.Cluster").fields_by_name
    assert "cookies" in SCHEMA.descriptor("envoy.config.route.v3.RouteMatch").fields_by_name


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_the_well_known_types_are_its_own(name):
    own = SCHEMA.message_class(f"google.protobuf.{name}")
    assert own.DESCRIPTOR.file.pool is SCHEMA.pool
    assert own.FromString(own().SerializeToString()) == own()


def test_a_binary_is_read_once():
    assert schema.load(ENVOY) is SCHEMA


def test_a_link_leads_to_the_same_schema(tmp_path):
    link = tmp_path / "envoy"
    link.symlink_to(ENVOY)
    assert schema.load(link) is SCHEMA


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("type.googleapis.com/envoy.Nothing", 'this Envoy has no message "envoy.Nothing"'),
        ("envoy.config.cluster.v3.Cluster", "is no type URL"),
        ("/envoy.config.cluster.v3.Cluster", "is no type URL"),
        ("type.googleapis.com/", "is no type URL"),
        ("", "is no type URL"),
    ],
)
def test_a_type_that_is_not_there_has_words(url, words):
    with pytest.raises(schema.UnknownType, match=words):
        SCHEMA.resolve(url)


def test_descriptions_are_found_wherever_they_stand(tmp_path, files):
    binary = tmp_path / "envoy"
    noise = b"\x00\x7fELF\x0a\x0cnot.a.protox\xff\xff"
    binary.write_bytes(noise + noise.join(files.values()) + noise)
    found = schema.load(binary)
    assert set(found.files) == set(files)
    for url in TYPE_URLS.values():
        assert found.resolve(url).DESCRIPTOR.full_name in url


def test_of_two_descriptions_the_whole_one_is_taken(tmp_path, files):
    name = "envoy/config/cluster/v3/cluster.proto"
    head = bytes((0x0A, len(name))) + name.encode()
    binary = tmp_path / "envoy"
    binary.write_bytes(b"\x00".join([head, *files.values(), head]) + b"\x00")
    fields = schema.load(binary).descriptor("envoy.config.cluster.v3.Cluster").fields
    assert len(fields) == len(SCHEMA.descriptor("envoy.config.cluster.v3.Cluster").fields)


def test_a_binary_that_lacks_a_description_says_which(tmp_path, files):
    binary = tmp_path / "envoy"
    rest = [body for name, body in files.items() if name != "envoy/config/cluster/v3/cluster.proto"]
    binary.write_bytes(b"\x00".join(rest))
    with pytest.raises(schema.NoEnvoy, match=r'no message "envoy.config.cluster.v3.Cluster"'):
        schema.load(binary)


def test_a_binary_that_is_cut_off_is_refused(tmp_path, files):
    binary = tmp_path / "envoy"
    binary.write_bytes(b"\x00".join(files.values())[:-1000])
    with pytest.raises(schema.NoEnvoy, match="does not describe its messages"):
        schema.load(binary)


@pytest.mark.parametrize("content", [None, b"", b"#!/bin/sh\n", b"\x0a\x07a.proto"])
def test_a_file_that_is_no_envoy_is_refused_by_name(tmp_path, content):
    binary = tmp_path / "envoy"
    if content is not None:
        binary.write_bytes(content)
    with pytest.raises(schema.NoEnvoy, match=str(binary)):
        schema.load(binary)


def test_another_program_is_refused_with_what_to_do():
    with pytest.raises(schema.NoEnvoy, match="set ENVOY_PATH to an Envoy") as refused:
        schema.load(Path(sys.executable))
    assert refused.value.status == 503


def a_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path, monkeypatch) -> dict[str, Path]:
    """An Envoy in each place, and the environment that leads to them."""
    found = {name: a_file(tmp_path / name / "envoy") for name in ("given", "environment", "path")}
    monkeypatch.setenv("ENVOY_PATH", str(found["environment"]))
    monkeypatch.setenv("PATH", f"{found['path'].parent}{os.pathsep}/usr/bin")
    return found


def test_the_given_path_comes_first(places):
    assert schema.find_envoy(str(places["given"])) == places["given"]


def test_then_the_environment(places):
    assert schema.find_envoy() == places["environment"]


def test_then_the_python_package(places, monkeypatch):
    monkeypatch.delenv("ENVOY_PATH")
    assert schema.find_envoy().parts[-3:] == ("envoy", "_bin", "envoy")


def test_then_the_search_path(places, monkeypatch):
    monkeypatch.delenv("ENVOY_PATH")
    monkeypatch.setattr(schema, "PACKAGE", "no-such-package")
    assert schema.find_envoy() == places["path"]


def test_nowhere_names_all_places(places, monkeypatch):
    monkeypatch.delenv("ENVOY_PATH")
    monkeypatch.setattr(schema, "PACKAGE", "no-such-package")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(schema.NoEnvoy) as refused:
        schema.find_envoy()
    for place in ("no path was given", "$ENVOY_PATH", "no-such-package", "PATH"):
        assert place in str(refused.value)


def test_a_named_envoy_that_is_not_there_is_not_replaced(places, monkeypatch, tmp_path):
    with pytest.raises(schema.NoEnvoy, match=r'the given path names ".*nowhere"'):
        schema.find_envoy(str(tmp_path / "nowhere"))
    monkeypatch.setenv("ENVOY_PATH", str(tmp_path / "gone"))
    with pytest.raises(schema.NoEnvoy, match=r'\$ENVOY_PATH names ".*gone"'):
        schema.find_envoy()
