"""Commands in texts that Envoy fills in: those that we let through are those that it takes."""

from typing import Any

import pytest

from koguma.envoy import access_logs, operators
from koguma.envoy.callers import Caller, Uri
from tests.envoy import real_envoy
from tests.envoy.some_certificates import call_as, certificate, mutual
from tests.ports import free_port

# Texts and what is wrong with them.
TEXTS = (
    ("no command", ""),
    ("%START_TIME%", ""),
    ("%START_TIME(%Y-%m-%d)%", ""),
    ("100%% of %BYTES_SENT%", ""),
    ("%REQ(X-A?B):5%", ""),
    ("%CEL(request.headers['a'] == ')')%", ""),
    ("%DYNAMIC_METADATA(a:b:c)%", ""),
    ("%NO_SUCH%", 'has "%NO_SUCH%", which Envoy does not know'),
    ("%KUMA_MESH%", 'has "%KUMA_MESH%", which Envoy does not know'),
    ("50% off", 'has a "%" before " off" that begins no command; write "%%" for the sign'),
    ("%PROTOCOL", 'has a "%" before "PROTOCOL" that begins no command; write "%%" for the sign'),
    ("%protocol%", 'has a "%" before "protocol%" that begins no command; write "%%" for the sign'),
    ("%REQ%", 'has "%REQ%", which needs something in parentheses'),
    ("%REQ()%", 'has "%REQ%", which needs something in parentheses'),
    ("%DURATION(1)%", 'has "%DURATION(1)%", which takes nothing in parentheses'),
)


@pytest.mark.parametrize(("text", "problem"), TEXTS)
def test_what_is_wrong_with_a_text_is_said(text: str, problem: str) -> None:
    assert "; ".join(operators.problems(text)) == problem


def lines(*texts: str) -> list[Any]:
    logs = [access_logs.file("/dev/null", {"text_format_source": {"inline_string": each}}) for each in texts]
    route = {"name": "it", "virtual_hosts": [{"name": "it", "domains": ["*"], "routes": []}]}
    return [real_envoy.listener("it", 1, real_envoy.hcm(route, access_log=logs))]


# What goes into the parentheses of those that are particular about it.
ARGUMENTS = {
    "CEL": "request.path",
    "COALESCE": '{"operators": ["PROTOCOL"]}',
    "COMMON_DURATION": "DS_RX_BEG:DS_RX_END:ms",
    "METADATA": "LISTENER:a:b",
    "PATH": "NQ:PATH",
    "QUERY_PARAMS": "ORIG",
    "GRPC_STATUS": "NUMBER",
}


@pytest.mark.slow
def test_envoy_takes_every_command_that_we_let_through() -> None:
    texts = [f"%{name}%" for name, takes in operators._ARGUMENT.items() if not takes]
    texts += [
        f"%{name}({ARGUMENTS.get(name, 'A')})%"
        for name, takes in operators._ARGUMENT.items()
        if takes is not False
    ]
    assert len(texts) > 150
    assert real_envoy.validated(lines(*texts, *(text for text, problem in TEXTS if not problem)), []) == ""


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text, problem in TEXTS if problem])
def test_envoy_refuses_what_we_refuse(text: str) -> None:
    assert real_envoy.validated(lines(text), []) != ""


@pytest.mark.slow
def test_a_logger_for_some_callers_or_routes_writes_about_no_others(tmp_path) -> None:
    def log(name: str) -> Any:
        return access_logs.file(
            str(tmp_path / name), {"text_format_source": {"inline_string": "%REQ(:PATH)%\n"}}
        )

    second = Caller((Uri("spiffe://default/second", domain="spiffe://default/"),))
    logs = [
        access_logs.from_caller(log("caller"), second),
        access_logs.on_routes(log("on"), ["it's"]),
        access_logs.not_on_routes(log("off"), ["it's"]),
        access_logs.on_routes(access_logs.from_caller(log("both"), second), ["it's"]),
    ]
    answer = {"direct_response": {"status": 200}}
    routes = [
        {"name": "it's", "match": {"prefix": "/named"}, **answer},
        {"name": "other", "match": {"prefix": "/other"}, **answer},
    ]
    route = {"name": "it", "virtual_hosts": [{"name": "it", "domains": ["*"], "routes": routes}]}
    port = free_port()
    ca = certificate(())
    note = {"name": access_logs.CALLER_FILTER, "typed_config": access_logs.caller_filter()}
    chain = real_envoy.hcm(route, access_log=logs)
    with real_envoy.envoy([real_envoy.listener("it", port, note, chain, **mutual(ca))], [], tmp_path):
        for who in (("spiffe://default/first",), ("spiffe://default/first", "spiffe://default/second")):
            for path in ("named", "other", "nowhere"):
                call_as(certificate(who, ca), port, tmp_path, path=f"/{path}/{len(who)}")
    found = {name: (tmp_path / name).read_text().split() for name in ("caller", "on", "off", "both")}
    assert found == {
        "caller": ["/named/2", "/other/2", "/nowhere/2"],
        "on": ["/named/1", "/named/2"],
        "off": ["/other/1", "/nowhere/1", "/other/2", "/nowhere/2"],
        "both": ["/named/2"],
    }
