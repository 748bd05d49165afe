"""Zone authentication: which zone tokens are good for which zone proxies, in Kuma's words."""

import pytest

from koguma.identity import zone_auth
from koguma.identity.claims import ZoneClaims
from koguma.model.errors import Forbidden


@pytest.mark.parametrize(
    "claims",
    [
        ZoneClaims(zone="east", scope=("egress",)),
        ZoneClaims(zone="east", scope=("ingress", "egress", "cp")),
        ZoneClaims(zone="", scope=("egress",)),
    ],
)
def test_a_token_with_the_scope_is_good_in_its_zone(claims):
    zone_auth.check(claims, "egress", "east")


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        (
            ZoneClaims(zone="east", scope=("ingress", "cp")),
            "token cannot be used to authenticate zone entity (egress is out of token's scope: [ingress cp])",
        ),
        (
            ZoneClaims(zone="west", scope=("egress",)),
            "zone from requestor: east is different than in token: west",
        ),
        (
            ZoneClaims(zone="west", scope=()),
            (
                "token cannot be used to authenticate zone entity (egress is out of token's scope: []); "
                "zone from requestor: east is different than in token: west"
            ),
        ),
    ],
)
def test_another_token_is_refused_with_all_reasons(claims, text):
    with pytest.raises(Forbidden) as refused:
        zone_auth.check(claims, "egress", "east")
    assert refused.value.detail == text
