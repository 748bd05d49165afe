"""Dataplane authentication: whatever a token says must be true of the proxy, and what is not is named."""

import base64
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.identity import dataplane_auth, tokens
from koguma.identity.claims import DATAPLANE, DataplaneClaims
from koguma.identity.signing_keys import key_ring
from koguma.model.errors import Forbidden, KogumaError, Unauthenticated
from koguma.model.resource import Resource

HOUR = timedelta(hours=1)
SERVICE = "kuma.io/service"
WEB = ({SERVICE: "web", "team": "a"}, {SERVICE: "web-api"})
LABELS = {"kuma.io/workload": "web", "kuma.io/zone": "east", "kuma.io/mesh": "m"}


def checked(tag_sets=WEB, labels=LABELS, **claims):
    dataplane_auth.check(DataplaneClaims(mesh="m", **claims), "m", "web-1", tag_sets, labels)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"name": "web-1"},
        {"type": "dataplane"},
        {"workload": "web"},
        {"tags": {SERVICE: ("web", "web-api")}},
        {"tags": {SERVICE: ("web", "web-api", "more")}},
        {"tags": {"team": ("a",)}},  # one inbound has it, and says nothing else
        {"tags": {"kuma.io/zone": ("east",)}},  # the label that the control plane writes
        {"name": "web-1", "workload": "web", "type": "dataplane", "tags": {"team": ("a", "b")}},
    ],
    ids=str,
)
def test_a_token_that_says_what_is_true_is_taken(claims):
    checked(**claims)


@pytest.mark.parametrize(
    ("claims", "field", "text"),
    [
        (
            {"name": "web-2"},
            "name",
            "proxy name from requestor: web-1 is different than in token: web-2",
        ),
        (
            {"type": "ingress"},
            "type",
            "proxy type from requestor: dataplane is different than in token: ingress",
        ),
        (
            {"tags": {"version": ("1",)}},
            'tags["version"]',
            'dataplane has no tag "version" required by the token',
        ),
        (
            {"tags": {SERVICE: ("web", "shop")}},
            f'tags["{SERVICE}"]',
            (
                f'dataplane contains tag "{SERVICE}" with value "web-api" which is not allowed with this'
                ' token. Allowed values in token are ["shop" "web"]'
            ),
        ),
        (
            {"tags": {"kuma.io/zone": ("west",)}},
            'tags["kuma.io/zone"]',
            (
                'dataplane contains tag "kuma.io/zone" with value "east" which is not allowed with this'
                ' token. Allowed values in token are ["west"]'
            ),
        ),
        (
            {"tags": {"team": ()}},
            'tags["team"]',
            (
                'dataplane contains tag "team" with value "a" which is not allowed with this token.'
                " Allowed values in token are []"
            ),
        ),
        (
            {"workload": "shop"},
            'labels["kuma.io/workload"]',
            'dataplane workload "web" is not allowed with this token. Allowed workload in token is "shop"',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_what_does_not_fit_is_named(claims, field, text):
    with pytest.raises(Forbidden) as refused:
        checked(**claims)
    assert [(v.field, v.message) for v in refused.value.violations] == [(field, text)]
    assert refused.value.detail == text


def test_a_token_of_another_mesh_is_nobodys():
    with pytest.raises(Unauthenticated, match="proxy mesh from requestor: n is different than in token: m"):
        dataplane_auth.check(DataplaneClaims(mesh="m"), "n", "web-1", WEB, LABELS)


def test_a_workload_that_the_proxy_does_not_have_is_asked_for():
    with pytest.raises(Forbidden, match="dataplane has no workload label required by the token"):
        checked(labels={}, workload="web")


def test_a_label_does_not_hide_behind_a_tag_of_the_same_name():
    with pytest.raises(Forbidden, match='tag "team" with value "b"'):
        checked(labels={"team": "b"}, tags={"team": ("a",)})


def test_everything_that_does_not_fit_is_said_at_once():
    with pytest.raises(Forbidden) as refused:
        checked(name="x", type="egress", workload="y", tags={"version": ("1",), "team": ("b",)})
    assert [violation.rule for violation in refused.value.violations] == [
        *("name", "type", "tag", "tag", "workload")
    ]


def test_the_name_is_checked_before_the_proxy_is_known():
    claims = DataplaneClaims(mesh="m", name="web-1", tags={"version": ("1",)}, workload="y")
    dataplane_auth.check_name(claims, "m", "web-1")
    with pytest.raises(Forbidden):
        dataplane_auth.check_name(claims, "m", "web-2")


NAMES = st.sampled_from(["a", "b", "c"])
TAGS = st.dictionaries(NAMES, NAMES, max_size=3)
SETS = st.lists(TAGS, max_size=3)


@given(SETS, TAGS, st.dictionaries(NAMES, st.lists(NAMES, max_size=3).map(tuple), max_size=2))
def test_a_token_with_tags_holds_exactly_where_all_values_are_allowed(tag_sets, labels, allowed):
    shown = {name: {tags[name] for tags in (*tag_sets, labels) if name in tags} for name in allowed}
    fits = all(shown[name] and shown[name] <= set(values) for name, values in allowed.items())
    try:
        checked(tag_sets=tag_sets, labels=labels, tags=allowed)
    except KogumaError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(
    ("networking", "sets"),
    [
        ({"inbound": [{"port": 1, "tags": {"a": "1"}}, {"port": 2}]}, ({"a": "1"}, {})),
        ({"gateway": {"type": "BUILTIN", "tags": {"a": "1"}}}, ({"a": "1"},)),
        ({"gateway": {}, "inbound": None}, ()),
        ({}, ()),
        (None, ()),
    ],
)
def test_tags_are_those_of_inbounds_and_gateway(networking, sets):
    assert dataplane_auth.tag_sets({"networking": networking}) == sets


@pytest.mark.parametrize("text", ["a.b.c", "Bearer a.b.c", "bearer  a.b.c\n", " a.b.c\n"])
def test_a_token_is_read_with_and_without_its_word(text):
    assert dataplane_auth.without_bearer(text) == "a.b.c"


def proxy(name="web-1"):
    spec = {"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {SERVICE: "web"}}]}}
    return Resource(kind="Dataplane", mesh="m", name=name, core_name=name, spec=spec, labels=LABELS)


def test_a_token_is_verified_and_fits_its_proxy(key_data, other_key_data, now):
    ring = key_ring(DATAPLANE, {DATAPLANE.key_name(1, "m"): key_data}, "m")
    claims = DataplaneClaims(mesh="m", name="web-1", tags={SERVICE: ("web",)})
    token = tokens.issue(ring, claims, HOUR, now).reveal()
    dataplane_auth.authenticate(ring, f"Bearer {token}", now, proxy())
    with pytest.raises(Forbidden, match="proxy name"):
        dataplane_auth.authenticate(ring, token, now, proxy("web-2"))
    with pytest.raises(Unauthenticated, match="expired"):
        dataplane_auth.authenticate(ring, token, now + 2 * HOUR, proxy())
    others = key_ring(DATAPLANE, {DATAPLANE.key_name(1, "m"): other_key_data}, "m")
    with pytest.raises(Unauthenticated, match="signature is invalid"):
        dataplane_auth.authenticate(others, token, now, proxy())


def test_a_revoked_token_fits_nothing(key_data, now):
    secrets = {DATAPLANE.key_name(1, "m"): key_data}
    ring = key_ring(DATAPLANE, secrets, "m")
    token = tokens.issue(ring, DataplaneClaims(mesh="m"), HOUR, now).reveal()
    jti = tokens.verify(ring, token, now).jti
    secrets[DATAPLANE.revocations_name("m")] = base64.b64encode(jti.encode()).decode()
    with pytest.raises(Unauthenticated, match="revoked"):
        dataplane_auth.authenticate(key_ring(DATAPLANE, secrets, "m"), token, now, proxy())
