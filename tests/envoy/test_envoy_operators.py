"""Commands in texts that Envoy fills in: those that we let through are those that it takes."""

import random
from typing import Any

import pytest

from koguma.envoy import access_logs, operators
from koguma.envoy.callers import Caller, UriSan
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
    ("%DURATION()%", ""),
    ("%%PROTOCOL%%", ""),
    ("%%%PROTOCOL%%%", ""),
    ("%%", ""),
    ("%", 'has a "%" before "" that begins no command; write "%%" for the sign'),
    ("%RESPONSE_COD%", 'has "%RESPONSE_COD%", which Envoy does not know; did you mean "%RESPONSE_CODE%"?'),
    ("%DURATION:5%", 'has "%DURATION:5%", which cannot be cut to a length'),
    ("%REQ(A):99999999999999999999%", 'has "%REQ(A):99999999999999999999%", whose length is too large'),
    ("%REQ(a b)%", 'has "%REQ(a b)%": "a b" cannot be the name of a header'),
    (
        "%REQ(A?B?C)%",
        (
            'has "%REQ(A?B?C)%": one header may stand in for another, not more;'
            " write two with one '?' between them"
        ),
    ),
    ("%PATH(NQ:NO)%", 'has "%PATH(NQ:NO)%": "NO" must be one of ORIG, PATH, ORIG_OR_PATH'),
    ("%CEL(request.path +)%", 'has "%CEL(request.path +)%": needs a value at its end'),
    ("%CEL(nope(1))%", 'has "%CEL(nope(1))%": calls "nope", which Envoy does not have here'),
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
    "REQUESTED_SERVER_NAME": "SNI_FIRST:ORIG",
    "XFCC_VALUE": "URI",
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


NAMES = tuple(operators._ARGUMENT)
FORMS = ("%{}%", "%{}()%", "%{}({})%", "%{}:5%", "%{}({}):5%", "%{}():5%", "%{}({}", "%{}({}):%")
PARTICULAR = {
    "REQ": (":path", "::a", "a:b", "A?", "?A", "?", "A?B?C", "a/b", "a_b.c-d", "ä", ":", "a%b"),
    "TRAILER": ("A?B?C", "a,b"),
    "XFCC_VALUE": ("uri", "By", "Hash", "Cert", "Chain", "Subject", "DNS", "nope"),
    "METADATA": ("DYNAMIC", "CLUSTER:a", "ROUTE:a", "UPSTREAM_HOST:a", "VIRTUAL_HOST:a", "HOST:a", "route:a"),
    "FILTER_STATE": ("a", "a:", "a:PLAIN", "a:TYPED", "a:FIELD", "a:FIELD:x", "a:PLAIN:x", ":PLAIN", "a:b"),
    "GRPC_STATUS": ("CAMEL_STRING", "SNAKE_STRING", "number", " "),
    "PATH": ("WQ", "ORIG", "WQ:ORIG", "NQ:", "NQ:PATH:X", ":PATH", "wq"),
    "QUERY_PARAMS": ("DECODED", "orig", "ORIG:DECODED"),
    "REQUESTED_SERVER_NAME": ("SNI_ONLY", "HOST_FIRST:ORIG", ":HOST", "SNI_FIRST:X", "HOST_ONLY"),
    "COMMON_DURATION": ("a:b", "a", "a:b:us", "a:b:s", "a:b:ms:x"),
    "START_TIME": ("%", "%Y-%m-%dT%H:%M:%S.%3fZ", "a(b)c", "%q"),
    "COALESCE": (
        *("{}", "[]", '{"operators": []}', '{"operators": ["NOPE"]}', '{"operators": [1]}', "a", "NaN"),
        '{"operators": [{"command": "REQ", "param": "A", "max_length": 5}, "PROTOCOL"], "x": 1}',
        *('{"operators": [{"command": "REQ"}]}', '{"operators": [{"command": "REQ", "param": "a:b"}]}'),
        '{"operators": [{"command": "REQ", "param": "A", "max_length": 0}]}',
        *('{"operators": [{"command": "PROTOCOL", "max_length": 5}]}', '{"operators": [{"param": "A"}]}'),
    ),
    "CEL": (
        *("a.b['c'].d", "a ? b : c", "a ? b", "a in [1, 2u, 3.5, .5e-3]", "{'a': 1,}", "[,]", "()", "a..b"),
        *("'a\\n' + \"b\"", "'a\\q'", "r'\\d'", "b'x'", "rb'x'", "'open", "a == b && !c || -d", "!-a", "!-1"),
        *("a.size() + size(b)", "size()", "a.matches('b')", "matches(a)", "x.getHours('z')", "a.map(x, x)"),
        *("re.extract(a, 'b', 'c')", "re.extract(a)", "string(1)", "has(a.b)", "has(a)", "has(a[0])"),
        *("if", "a.if", "a.in", "var.x", "9223372036854775808", "-9223372036854775808", "0x1F", "0x"),
        *("google.protobuf.Int64Value{value: 1}", "a{}", "a // b", "1 2", "a;b", "a.`b-c`", "`a`", "é"),
        *("(" * 32 + "a" + ")" * 32, "(" * 33 + "a" + ")" * 33, "a+" * 31 + "a", "a+" * 32 + "a"),
        *("a && " * 99 + "a", "a ? b : " * 31 + "c", "a ? b : " * 32 + "c", "!" * 99 + "a"),
    ),
}
PIECES = (
    *("%", "%%", "a", "PROTOCOL", "REQ", "(A)", "(", ")", ":", "5", " ", "\n"),
    *("%PROTOCOL%", "%REQ(A)%", "%START_TIME(%Y)%", "%NO_SUCH%"),
)


def many_texts() -> list[str]:
    """Every command in every form, arguments of those that are particular, and pieces in any order."""
    chance = random.Random(7)
    made = [form.format(name, ARGUMENTS.get(name, "A")) for name in NAMES for form in FORMS]
    made += [f"%{name}({argument})%" for name, found in PARTICULAR.items() for argument in found]
    made += ["".join(chance.choices(PIECES, k=chance.randint(1, 6))) for _ in range(700)]
    return list(dict.fromkeys(made))


@pytest.mark.slow
def test_envoy_refuses_what_we_refuse_and_nothing_else(tmp_path) -> None:
    texts = [*(text for text, _ in TEXTS), *many_texts()]
    assert len(texts) > 1500
    listeners = []
    for number, text in enumerate(texts, 1):
        (made,) = lines(text)
        listeners.append(made | {"name": str(number), "address": real_envoy.address(number)})
        listeners[-1]["bind_to_port"] = False
    refused = real_envoy.refused(listeners, [], tmp_path)
    ours = {str(number): list(operators.problems(text)) for number, text in enumerate(texts, 1)}
    differs = [
        (text, ours[str(number)], refused.get(str(number)))
        for number, text in enumerate(texts, 1)
        if bool(ours[str(number)]) != (str(number) in refused)
    ]
    assert differs == []
    assert len(refused) > 500


@pytest.mark.parametrize("argument", ["1", "null", '"a"', "[1]"])
def test_what_an_envoy_dies_of_is_refused(argument: str) -> None:
    assert "write an object with a list of commands" in "; ".join(
        operators.problems(f"%COALESCE({argument})%")
    )


@pytest.mark.slow
def test_a_logger_for_some_callers_or_routes_writes_about_no_others(tmp_path) -> None:
    def log(name: str) -> Any:
        return access_logs.file(
            str(tmp_path / name), {"text_format_source": {"inline_string": "%REQ(:PATH)%\n"}}
        )

    second = Caller((UriSan("spiffe://default/second", domain="spiffe://default/"),))
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
