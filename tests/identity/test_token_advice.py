"""What a refused token says it is leads to the right command, and is never more than words."""

import base64
import json
from datetime import timedelta

import pytest

from koguma.identity import dataplane_auth, token_advice, tokens
from koguma.identity.claims import DATAPLANE, USER, ZONE, DataplaneClaims, UserClaims, ZoneClaims
from koguma.identity.signing_keys import key_ring
from koguma.model.errors import Unauthenticated
from koguma.model.resource import Resource

HOUR = timedelta(hours=1)
WEB = Resource(kind="Dataplane", mesh="m", name="web-1", core_name="web-1", spec={})


def refusal(ring, token, now) -> str:
    with pytest.raises(Unauthenticated) as refused:
        dataplane_auth.authenticate(ring, token, now, WEB)
    return refused.value.detail


@pytest.mark.parametrize(
    ("purpose", "mesh", "claims", "says"),
    [
        (USER, "", UserClaims(name="joe"), "a user token, and a dataplane token is needed here"),
        (ZONE, "", ZoneClaims(zone="east"), "a zone token, and a dataplane token is needed here"),
        (
            DATAPLANE,
            "n",
            DataplaneClaims(mesh="n"),
            'a dataplane token for mesh "n", and one for mesh "m" is needed here',
        ),
    ],
)
def test_a_proxy_with_a_token_for_something_else_reads_what_it_is(
    key_data, other_key_data, now, purpose, mesh, claims, says
):
    other = key_ring(purpose, {purpose.key_name(1, mesh): other_key_data}, mesh)
    ring = key_ring(DATAPLANE, {DATAPLANE.key_name(1, "m"): key_data}, "m")
    token = tokens.issue(other, claims, HOUR, now).reveal()
    assert refusal(ring, token, now) == (
        f"could not parse token: signature is invalid; the token says that it is {says}:"
        " `koguma token dataplane --mesh m --name NAME --service SERVICE` issues one"
    )


def test_a_token_of_the_right_kind_is_to_be_issued_anew(key_data, now):
    ring = key_ring(DATAPLANE, {DATAPLANE.key_name(1, "m"): key_data}, "m")
    token = tokens.issue(ring, DataplaneClaims(mesh="m"), HOUR, now).reveal()
    assert refusal(ring, token, now + 2 * HOUR) == (
        "token is expired; `koguma token dataplane --mesh m --name NAME --service SERVICE` issues a new one"
    )


def unsigned(claims) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("claims", "shown"),
    [
        ({"Mesh": "shop"}, 'a dataplane token for mesh "shop"'),
        ({"Mesh": "\x1b[2Jshop"}, "a dataplane token"),
        ({"Mesh": "x" * 5000}, "a dataplane token"),
        ({"Mesh": ["shop"]}, "a dataplane token"),
        ({"Name": "joe", "Groups": []}, "a user token"),
        ({"Zone": "", "Scope": []}, "a zone token"),
        ({"iss": "kubernetes/serviceaccount"}, "a token of another system"),
    ],
)
def test_only_harmless_claims_are_repeated(claims, shown):
    assert str(token_advice.unverified(unsigned(claims))) == shown


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "e30.W10.x", "x" * 9000, "e30.ÿ.x", "a.b.c.d"])
def test_what_cannot_be_read_says_nothing(token):
    assert token_advice.unverified(token) is None
