"""Which server a command talks to, and what it sends there."""

import pytest

from koguma.cli import contexts
from koguma.cli.client import ApiClient
from koguma.cli.contexts import CliContext, Config
from koguma.cli.failures import CommandFailure, ExitCode, ServerUnreachable
from koguma.cli.target import ConnectionOptions, resolve
from koguma.model.redacted import Redacted

PROD = CliContext("prod", "https://prod:5682", Redacted("prod-token"), "", "/prod/ca.pem")
LOCAL = CliContext("local", "http://localhost:7000")


@pytest.fixture
def home(tmp_path):
    """An environment with two contexts, prod the current one."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    contexts.save(contexts.path(environment), Config("prod", (PROD, LOCAL)))
    return environment


def test_without_anything_the_server_is_on_this_machine(tmp_path):
    target = resolve(ConnectionOptions(), {"XDG_CONFIG_HOME": str(tmp_path)})
    assert (target.address, target.token, target.ca_file) == ("http://localhost:5681", None, "")


def test_the_current_context_comes_before_the_default(home):
    target = resolve(ConnectionOptions(), home)
    assert (target.address, target.token, target.ca_file) == (PROD.address, PROD.token, PROD.ca_file)
    assert target.origin == 'context "prod"'


def test_the_variable_comes_before_the_current_context(home):
    assert (
        resolve(ConnectionOptions(), {**home, "KOGUMA_ADDRESS": "http://localhost:1"}).address
        == "http://localhost:1"
    )


def test_the_flag_comes_before_the_variable(home):
    target = resolve(
        ConnectionOptions("http://localhost:2"), {**home, "KOGUMA_ADDRESS": "http://localhost:1"}
    )
    assert target.address == "http://localhost:2"


def test_a_context_that_a_flag_names_comes_before_the_environment(home):
    environment = {
        **home,
        "KOGUMA_ADDRESS": "http://localhost:1",
        "KOGUMA_TOKEN": "other",
        "KOGUMA_CA": "/other",
    }
    target = resolve(ConnectionOptions(context="prod"), environment)
    assert (target.address, target.token, target.ca_file) == (PROD.address, PROD.token, PROD.ca_file)


def test_the_current_contexts_token_is_not_sent_to_another_address(home):
    target = resolve(ConnectionOptions("https://elsewhere:5682"), home)
    assert (target.token, target.ca_file) == (None, "")


def test_a_token_file_comes_before_the_variable(home, tmp_path):
    file = tmp_path / "token"
    file.write_text("from-file\n")
    target = resolve(ConnectionOptions(token_file=str(file)), {**home, "KOGUMA_TOKEN": "from-variable"})
    assert target.token == Redacted("from-file")


def test_the_token_variable_comes_before_the_current_context(home):
    assert resolve(ConnectionOptions(), {**home, "KOGUMA_TOKEN": "mine"}).token == Redacted("mine")


@pytest.mark.parametrize("host", ["10.0.0.1", "cp.example.com", "0.0.0.0", "[2001:db8::1]"])
def test_a_token_never_crosses_a_network_in_the_clear(tmp_path, host):
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "KOGUMA_TOKEN": "secret"}
    with pytest.raises(CommandFailure) as failed:
        resolve(ConnectionOptions(f"http://{host}:5681"), environment)
    assert f"https://{host}:5682" in failed.value.message
    assert "secret" not in failed.value.message
    assert failed.value.code is ExitCode.USAGE


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_a_token_may_go_to_this_machine(tmp_path, host):
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "KOGUMA_TOKEN": "secret"}
    assert resolve(ConnectionOptions(f"http://{host}:5681"), environment).token == Redacted("secret")


@pytest.mark.parametrize(
    "address",
    [
        "localhost:5681",
        "ftp://a",
        "http://",
        "http://u:p@a",
        "http://a:99999",
        "http://a?b",
        "http://[",
        "http://a:0",
    ],
)
def test_what_is_no_address_is_wrong_usage(tmp_path, address):
    with pytest.raises(CommandFailure) as failed:
        resolve(ConnectionOptions(address), {"XDG_CONFIG_HOME": str(tmp_path)})
    assert failed.value.code is ExitCode.USAGE
    assert "--address" in failed.value.message


@pytest.mark.parametrize("text", ["", "two words", "é"])
def test_a_file_without_a_token_is_wrong_usage(tmp_path, text):
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CommandFailure) as failed:
        resolve(ConnectionOptions(token_file=str(file)), {"XDG_CONFIG_HOME": str(tmp_path)})
    assert failed.value.code is ExitCode.USAGE
    assert str(file) in failed.value.message


def test_a_named_data_directory_means_its_control_plane_and_no_other(tmp_path):
    options, named = ConnectionOptions(), {"KOGUMA_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)}
    with pytest.raises(ServerUnreachable, match="no control plane runs with the data directory"):
        ApiClient(resolve(options, named)).get("/")
    assert not resolve(options, {"HOME": str(tmp_path)}).is_socket_only
    assert not resolve(ConnectionOptions(address="http://localhost:1"), named).is_socket_only
    assert not resolve(options, {**named, "KOGUMA_TOKEN": "a.b.c"}).is_socket_only
