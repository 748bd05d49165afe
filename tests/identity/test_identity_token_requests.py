"""Requests for tokens: Kuma's fields, messages and defaults."""

from datetime import timedelta

import pytest

from koguma.identity import token_requests
from koguma.identity.claims import DataplaneClaims, UserClaims, ZoneClaims
from koguma.identity.token_requests import TEN_YEARS, dataplane_request, user_request, zone_request
from koguma.model.errors import Invalid


def _found(read, body) -> dict[str, str]:
    with pytest.raises(Invalid) as refused:
        read(body)
    assert refused.value.title == "Invalid request"
    return {violation.field: violation.message for violation in refused.value.violations}


@pytest.mark.parametrize(
    ("body", "claims", "lifetime"),
    [
        (
            {"name": "alice", "groups": ["a", "b"], "validFor": "24h0m0s"},
            UserClaims(name="alice", groups=("a", "b")),
            timedelta(days=1),
        ),
        (
            {"name": "alice", "groups": None, "validFor": "90s"},
            UserClaims(name="alice"),
            timedelta(seconds=90),
        ),
        ({"name": "alice", "validFor": "1.5s"}, UserClaims(name="alice"), timedelta(seconds=1.5)),
    ],
)
def test_a_user_request_becomes_claims(body, claims, lifetime) -> None:
    request = user_request(body)
    assert (request.claims, request.lifetime) == (claims, lifetime)


@pytest.mark.parametrize(
    ("body", "claims", "lifetime"),
    [
        ({"mesh": "m"}, DataplaneClaims(mesh="m"), TEN_YEARS),
        (
            {"name": "", "mesh": "m", "tags": None, "type": "", "workload": "", "validFor": "1h"},
            DataplaneClaims(mesh="m"),
            timedelta(hours=1),
        ),
        (
            {"name": "web", "mesh": "m", "tags": {"a": ["x", "y"]}, "type": "dataplane", "workload": "w"},
            DataplaneClaims(name="web", mesh="m", tags={"a": ("x", "y")}, type="dataplane", workload="w"),
            TEN_YEARS,
        ),
    ],
)
def test_a_dataplane_request_becomes_claims(body, claims, lifetime) -> None:
    request = dataplane_request(body)
    assert (request.claims, request.lifetime) == (claims, lifetime)


@pytest.mark.parametrize(
    ("body", "claims"),
    [
        ({}, ZoneClaims(scope=("ingress", "egress", "cp"))),
        ({"zone": "east", "scope": None}, ZoneClaims(zone="east", scope=("ingress", "egress", "cp"))),
        ({"zone": "east", "scope": ["egress"]}, ZoneClaims(zone="east", scope=("egress",))),
    ],
)
def test_a_zone_request_becomes_claims(body, claims) -> None:
    request = zone_request(body)
    assert (request.claims, request.lifetime) == (claims, TEN_YEARS)


@pytest.mark.parametrize(
    ("read", "body", "found"),
    [
        (user_request, {}, {"name": "cannot be empty", "validFor": "cannot be empty or nil"}),
        (user_request, {"name": "", "validFor": "1h"}, {"name": "cannot be empty"}),
        (dataplane_request, {}, {"mesh": "cannot be empty"}),
        (dataplane_request, {"mesh": "m", "type": "router"}, {"type": "router is not a valid proxy type"}),
        (zone_request, {"scope": []}, {"scope": "cannot be empty"}),
        (
            zone_request,
            {"scope": ["cp", "all"]},
            {"scope[1]": "in body should be one of [ingress egress cp]"},
        ),
        (zone_request, {"validFor": "0"}, {"validFor": "must have a positive value"}),
        (zone_request, {"validFor": "-1h"}, {"validFor": "must have a positive value"}),
        (dataplane_request, {"mesh": 5}, {"mesh": 'in body must be of type string: "integer"'}),
        (dataplane_request, [], {"": 'in body must be of type object: "array"'}),
        (zone_request, {"validFor": "1" * 65}, {"validFor": "in body should be at most 64 chars long"}),
    ],
)
def test_what_is_wrong_is_said_at_its_place(read, body, found) -> None:
    assert _found(read, body) == found


@pytest.mark.parametrize("read", [user_request, dataplane_request, zone_request])
def test_a_mistyped_lifetime_does_not_become_ten_years(read) -> None:
    body = {"name": "alice", "mesh": "m", "zone": "z", "valid_for": "1h"}
    assert _found(read, body)["valid_for"].endswith('did you mean "validFor"?')


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("10", 'time: missing unit in duration "10"'),
        ("1h10", 'time: missing unit in duration "1h10"'),
        ("30d", 'time: unknown unit "d" in duration "30d"'),
        ("1h2 m", 'time: unknown unit " m" in duration "1h2 m"'),
        ("soon", 'time: invalid duration "soon"'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("1h-5m", 'time: unknown unit "h-" in duration "1h-5m"'),
        ('1"', 'time: unknown unit "\\"" in duration "1\\""'),
        ("1д", 'time: unknown unit "\\xd0\\xb4" in duration "1\\xd0\\xb4"'),
        ("9999999999h", 'time: invalid duration "9999999999h"'),
    ],
)
def test_a_bad_duration_is_explained_in_the_words_of_go(text, error) -> None:
    assert _found(zone_request, {"validFor": text}) == {"validFor": f"is invalid: {error}"}


def test_every_mistake_is_said_at_once() -> None:
    found = _found(dataplane_request, {"type": "x", "validFor": "x"})
    assert list(found) == ["mesh", "validFor", "type"]


def test_the_default_scope_is_every_scope() -> None:
    assert token_requests.SCOPES == ("ingress", "egress", "cp")
