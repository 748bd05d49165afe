"""The command line of `koguma dp run`: its help, and what it refuses before anything starts."""

import click
import pytest

from koguma.cli import dp, dp_options, main
from koguma.cli.failures import CommandFailure

WEB = ("--name", "web-1", "--service", "web", "--port", "8080", "--service-port", "18080")
EDGE = ("--gateway", "--name", "edge-1", "--tag", "kuma.io/service=edge")
OFF = ("--cp-address", "https://10.0.0.2:5678")


def test_the_help_has_headings_and_examples(capsys):
    assert main(["dp", "run", "--help"]) == 0
    shown = capsys.readouterr().out
    for title in ("Who the proxy is:", "Where the control plane is:", "Envoy:", "Beside Envoy:"):
        assert title in shown
    assert "koguma dp run --name web-1 --service web" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say who the proxy is: --name with --service"),
        (("--service", "web"), "say who the proxy is"),
        (("--name", "web-1", "--dataplane-var", "a=b"), "--dataplane-var goes with --dataplane-file"),
        (("--dataplane-file", "/nowhere.yaml"), "/nowhere.yaml"),
        (("--name", "web-1", "--port", "http"), '"http" must be a port from 0 to 65535'),
        (("--name", "web-1", "--port", "0"), '"0" must be a port from 1 to 65535'),
        (("--name", "web-1", "--tag", "version"), '"version" must be KEY=VALUE'),
        (("--name", "web-1", "--outbound", "backend"), '"backend" must be NAME:LOCALPORT'),
        (("--name", "web-1", "--drain-time", "soon"), '"soon" must be a duration'),
        (("--name", "web-1", "--drain-time", "-1s"), '"-1s" must not be negative'),
        (("--name", "web-1", "--concurrency", "0"), '"0" must be a number from 1 on'),
        (("--name", "web-1", "--dns-upstream", "dns"), '"dns" must be an IP address'),
        (("--name", "web-1", "--access-log-dir", "logs"), '"logs" must be a directory from the root'),
        (("--name", "web-1", "--access-log-dir", "/a/../b"), '"/a/../b" must be a directory from the root'),
        (("--name", "web-1", "--service", "web", "--port", "8080"), "say with --service-port"),
        ((*WEB, "--cp-address", "http://127.0.0.1:5678"), "must be https://HOST:PORT"),
        ((*WEB, "--cp-address", "https://127.0.0.1:5678,http://10.0.0.2"), "must be https://HOST:PORT"),
        ((*WEB, "--cp-address", " , "), "must be an address, or several with commas between"),
        (
            (*WEB, *(f"--cp-address=https://127.0.0.1:{port}" for port in range(1, 18))),
            "there are 17 addresses, and 16 at most",
        ),
        ((*WEB, "--cp-address", "https://127.0.0.1:5678,https://10.0.0.2:5678"), "at 10.0.0.2 is on another"),
        (("--gateway", "--name", "edge-1"), "--gateway needs --tag kuma.io/service=NAME"),
        (("--gateway", "--tag", "kuma.io/service=edge"), "--gateway with --name and --tag for a gateway"),
        ((*EDGE, "--service", "web"), "--service web and --tag kuma.io/service=edge name two services"),
        (
            (*EDGE, "--port", "8080", "--outbound", "backend:9001", "--protocol", "http"),
            "--port, --protocol, --outbound: only a sidecar has it, not --gateway",
        ),
        ((*EDGE, "--transparent-proxy", "--dns"), "--transparent-proxy, --dns: only a sidecar has it"),
        ((*EDGE, "--service-probe"), "--service-probe: only a sidecar has it, not --gateway"),
        ((*EDGE, "--proxy-type", "egress"), "--gateway is a proxy of a mesh, --proxy-type egress one of a"),
        ((*WEB, *OFF), "is on another machine, so its CA is needed: copy ca.pem"),
        ((*WEB, "--dataplane-token-file", "/nowhere.token"), "/nowhere.token: No such file"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(words, message, capsys, monkeypatch):
    for name in ("KOGUMA_CA", "KOGUMA_CP_ADDRESS", "KOGUMA_DATAPLANE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert main(["dp", "run", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "variable", "expected"),
    [
        ((), None, ["https://127.0.0.1:5678"]),
        ((), "https://a:1,https://b:2", ["https://a:1", "https://b:2"]),
        ((), "https://a:1 https://b:2", ["https://a:1", "https://b:2"]),
        (("--cp-address", "https://c:3/"), "https://a:1", ["https://c:3"]),
        (
            ("--cp-address", "https://a:1, https://b:2", "--cp-address", "https://a:1"),
            None,
            ["https://a:1", "https://b:2"],
        ),
    ],
)
def test_several_addresses_come_by_flags_commas_or_the_environment(words, variable, expected, monkeypatch):
    monkeypatch.delenv("KOGUMA_CP_ADDRESS", raising=False)
    if variable:
        monkeypatch.setenv("KOGUMA_CP_ADDRESS", variable)
    command = click.Command("run", params=dp_options.all_options())
    with command.make_context("run", ["--name", "web-1", *words]) as context:
        assert list(dp._addresses(context.params["cp_addresses"])) == expected


def test_a_file_and_flags_do_not_mix(tmp_path, capsys):
    file = tmp_path / "web.yaml"
    file.write_text("type: Dataplane\nname: web-1\n")
    words = ["dp", "run", "--dataplane-file", str(file), "--address", "::1", "--outbound", "b:1"]
    assert main(words) == 2
    assert "says all that --address, --outbound would say" in capsys.readouterr().err


def test_the_file_of_a_gateway_must_be_one(tmp_path, capsys):
    file = tmp_path / "web.yaml"
    file.write_text("type: Dataplane\nname: web-1\nnetworking: {address: 10.0.0.7}\n")
    assert main(["dp", "run", "--gateway", "--dataplane-file", str(file)]) == 2
    assert "networking.gateway.type is BUILTIN; leave out --gateway" in capsys.readouterr().err


def test_an_envoy_that_is_not_there_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["dp", "run", *WEB, "--envoy-path", "/nowhere/envoy"]) == 1
    assert '"/nowhere/envoy", and there is no such file' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.2", ("10.0.0.2", 53)),
        ("10.0.0.2:5353", ("10.0.0.2", 5353)),
        ("fd00::2", ("fd00::2", 53)),
        ("[fd00::2]:5353", ("fd00::2", 5353)),
    ],
)
def test_a_name_server_may_have_a_port(text, server):
    assert dp_options.name_server(text) == server


@pytest.mark.parametrize(("host", "is_found"), [("127.0.0.1", True), ("localhost", True), ("[::1]", True)])
def test_on_the_same_machine_the_ca_is_found_in_the_data_directory(host, is_found, tmp_path, monkeypatch):
    monkeypatch.setenv("KOGUMA_DATA_DIR", str(tmp_path))
    assert dp._ca_file((f"https://{host}:5678",), "") == ""
    (tmp_path / "ca.pem").write_text("a CA")
    assert (dp._ca_file((f"https://{host}:5678",), "") == str(tmp_path / "ca.pem")) is is_found


def test_a_token_in_a_file_is_read_each_time(tmp_path):
    file = tmp_path / "token"
    file.write_text("one\n")
    token = dp._token(str(file), "another")
    assert token().reveal() == "one"
    file.write_text("two")
    assert token().reveal() == "two"
    file.unlink()
    with pytest.raises(CommandFailure, match="No such file"):
        token()
    assert dp._token("", " three\n")().reveal() == "three"
    assert dp._token("", "")() is None
