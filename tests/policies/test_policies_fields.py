"""Values that several policies read: numbers written as text, addresses, paths."""

from decimal import Decimal

import pytest

from koguma.policies.parts import fields


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (5, Decimal(5)),
        (-5, Decimal(-5)),
        ("5", Decimal(5)),
        ("+.5", Decimal("0.5")),
        ("12.50", Decimal("12.5")),
        ("", None),
        ("five", None),
        ("1_000", None),
        (" 5", None),
        ("NaN", None),
        ("Infinity", None),
        ("1e9999999999", None),
        ("٣", None),
        ("9" * 65, None),
    ],
)
def test_a_number_may_be_written_as_text(written: int | str, meant: Decimal | None) -> None:
    assert fields.number(written) == meant


@pytest.mark.parametrize(
    ("text", "with_port", "at_all"),
    [
        ("logs:5000", True, True),
        ("10.0.0.1:1", True, True),
        ("[2001:db8::1]:65535", True, True),
        ("logs.example.com", False, True),
        ("[::1]", False, True),
        ("logs:0", False, False),
        ("logs:65536", False, False),
        ("logs:http", False, False),
        ("::1", False, False),
        ("[10.0.0.1]:80", False, False),
        ("http://logs:80", False, False),
        ("a b:80", False, False),
        ("", False, False),
        (":80", False, False),
        ("logs_1.Example.com.:80", True, True),
        ("1.2.3:80", False, False),
        ("999.0.0.1:80", False, False),
        ("a..b:80", False, False),
        ("-a:80", False, False),
        ("...", False, False),
        ("a" * 64, False, False),
    ],
)
def test_an_address_is_a_host_and_a_port(*, text: str, with_port: bool, at_all: bool) -> None:
    assert fields.is_address(text, needs_port=True) is with_port
    assert fields.is_address(text) is at_all


@pytest.mark.parametrize(
    ("text", "is_address"),
    [
        ("otel:4317", True),
        ("otel.example.com", True),
        ("10.0.0.1", True),
        ("[::1]", True),
        ("otel", False),
        ("otel:", False),
        ("o tel:4317", False),
        ("http://otel:4317", False),
    ],
)
def test_a_collector_is_named_by_its_address(*, text: str, is_address: bool) -> None:
    assert fields.is_collector_address(text) is is_address


@pytest.mark.parametrize(
    ("text", "named"), [("/a/b", True), ("/", True), ("a", False), ("", False), ("/a\0", False)]
)
def test_a_file_is_named_from_the_root(*, text: str, named: bool) -> None:
    assert fields.is_path(text) is named
