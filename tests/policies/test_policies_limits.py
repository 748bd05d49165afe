"""Sizes that would cost every proxy, or that Envoy refuses: the last legal one, and the first that is not."""

import base64

import pytest

from koguma.policies import mesh_http_route
from koguma.policies.parts import regular_expression
from tests.policies import policy_cases


def words(pattern: str) -> list[str]:
    return [violation.message for violation in regular_expression.violations(pattern, "value")]


def body_words(**body: str) -> list[str]:
    filters = [{"type": "DirectResponse", "directResponse": {"status": 200, "body": body}}]
    return [message for _, message in policy_cases.violations(mesh_http_route.KIND, {"filters": filters})]


def test_an_expression_may_have_4096_characters_and_no_more() -> None:
    assert words("a" * 4096) == []
    assert words("a" * 4097) == ["is 4097 characters long; a regular expression has at most 4096"]


def test_a_short_expression_may_not_compile_to_a_large_program() -> None:
    (message,) = words(".{1000}" * 3)
    assert message.startswith("compiles to ")
    assert message.endswith(" instructions; a regular expression has at most 10000")


def test_an_expression_that_re2_itself_finds_too_large_is_refused() -> None:
    (message,) = words(r"(\pL{1000})" * 20)
    assert message.startswith("is not a regular expression that Envoy reads (RE2): ")


def test_half_of_a_surrogate_pair_is_refused_in_words() -> None:
    assert words("\ud800") == [
        "is not a regular expression that Envoy reads (RE2): it contains half of a surrogate pair"
    ]


def test_a_bad_expression_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert words("(a")
    assert capfd.readouterr() == ("", "")


def test_a_direct_response_may_have_4096_bytes_and_no_more() -> None:
    refused = ["is 4098 bytes long; a direct response has at most 4096"]
    assert body_words(inlineString="é" * 2048) == []
    assert body_words(inlineString="é" * 2049) == refused
    assert body_words(inlineBytes=base64.b64encode(b"a" * 4096).decode()) == []
    assert body_words(inlineBytes=base64.b64encode(b"a" * 4098).decode()) == refused
