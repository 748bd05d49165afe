"""Tokens: what is issued holds, and everything else is refused with a reason that repeats nothing of it."""

import base64
import contextlib
import functools
import hashlib
import hmac
import json
import uuid
from datetime import timedelta

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koguma.identity import tokens
from koguma.identity.claims import DATAPLANE, USER, ZONE, DataplaneClaims, UserClaims, ZoneClaims
from koguma.identity.signing_keys import key_ring
from koguma.model.errors import NotFound, Unauthenticated

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
ALICE = UserClaims(name="alice", groups=("team-a", "team-b"))
PROXY = DataplaneClaims(name="web-1", mesh="m", tags={"kuma.io/service": ("web", "api")}, workload="web")
EDGE = ZoneClaims(zone="east", scope=("ingress", "cp"))


@functools.cache
def _rings(data: str):
    return {
        "user": key_ring(USER, {USER.key_name(1): data}),
        "dataplane": key_ring(DATAPLANE, {DATAPLANE.key_name(1, "m"): data}, "m"),
        "zone": key_ring(ZONE, {ZONE.key_name(1): data}),
    }


SAMPLES = {"user": ALICE, "dataplane": PROXY, "zone": EDGE}


@functools.cache
def _private_key(data: str):
    return serialization.load_pem_private_key(base64.b64decode(data), password=None)


def _signed(data: str, claims, header=None) -> str:
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    headers = {"kid": "1"} if header is None else header
    return jwt.PyJWS().encode(body, _private_key(data), algorithm="RS256", headers=headers)


def _forged(header, body: bytes = b"{}", signature: bytes = b"x") -> str:
    parts = (header if isinstance(header, bytes) else json.dumps(header).encode(), body, signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _refusal(ring, token: str, now) -> str:
    with pytest.raises(Unauthenticated) as refused:
        tokens.verify(ring, token, now)
    return refused.value.detail


def _user(now, **changes):
    at = int(now.timestamp())
    claims = {"Name": "alice", "Groups": ["a"], "jti": "id-1", "nbf": at, "iat": at, "exp": at + 60}
    return {name: value for name, value in (claims | changes).items() if value is not ...}


@pytest.mark.parametrize("purpose", SAMPLES)
def test_what_is_issued_holds_and_says_the_same(purpose, key_data, now) -> None:
    ring, said = _rings(key_data)[purpose], SAMPLES[purpose]
    claims = tokens.verify(ring, tokens.issue(ring, said, HOUR, now).reveal(), now)
    assert msgspec.structs.replace(claims, jti="", iat=0, nbf=0, exp=0) == said


def test_a_token_looks_as_in_kuma(user_ring, now) -> None:
    token = tokens.issue(user_ring, ALICE, HOUR, now).reveal()
    at = int(now.timestamp())
    assert jwt.get_unverified_header(token) == {"alg": "RS256", "typ": "JWT", "kid": "1"}
    body = jwt.decode(token, options={"verify_signature": False})
    assert uuid.UUID(body.pop("jti")).version == 4
    assert body == {
        "Name": "alice",
        "Groups": ["team-a", "team-b"],
        "iat": at - 5,
        "nbf": at - 5,
        "exp": at + 3600,
    }


@pytest.mark.parametrize(
    ("purpose", "names"),
    [("dataplane", {"Name", "Mesh", "Tags", "Type", "Workload"}), ("zone", {"Zone", "Scope"})],
)
def test_claims_are_named_as_in_kuma(purpose, names, key_data, now) -> None:
    token = tokens.issue(_rings(key_data)[purpose], SAMPLES[purpose], HOUR, now).reveal()
    body = jwt.decode(token, options={"verify_signature": False})
    assert body.keys() == names | {"jti", "iat", "nbf", "exp"}


def test_two_tokens_have_two_ids(user_ring, now) -> None:
    first, second = (tokens.issue(user_ring, ALICE, HOUR, now).reveal() for _ in range(2))
    assert tokens.verify(user_ring, first, now).jti != tokens.verify(user_ring, second, now).jti


def test_a_token_does_not_print_itself(user_ring, now) -> None:
    assert str(tokens.issue(user_ring, ALICE, HOUR, now)) == "«redacted»"


def test_without_a_key_nothing_is_issued(now) -> None:
    with pytest.raises(NotFound) as refused:
        tokens.issue(key_ring(DATAPLANE, {}, "m"), PROXY, HOUR, now)
    assert refused.value.title == "Signing Key not found"
    assert refused.value.detail == (
        "there is no signing key with serial number 1. Secret of name"
        ' "dataplane-token-signing-key-m-1" in mesh "m" is not found. If signing key was rotated, regenerate'
        " the token"
    )


def test_after_a_rotation_old_tokens_hold_until_their_key_goes(key_data, other_key_data, now) -> None:
    old = {"user-token-signing-key-1": key_data}
    new = {"user-token-signing-key-2": other_key_data}
    token = tokens.issue(key_ring(USER, old), ALICE, HOUR, now).reveal()
    rotated = key_ring(USER, old | new)
    assert tokens.verify(rotated, token, now).name == "alice"
    assert jwt.get_unverified_header(tokens.issue(rotated, ALICE, HOUR, now).reveal())["kid"] == "2"
    assert _refusal(key_ring(USER, new), token, now) == (
        'there is no signing key with serial number 1. GlobalSecret of name "user-token-signing-key-1" is not'
        " found. If signing key was rotated, regenerate the token"
    )


def test_a_public_key_alone_verifies(key_data, now) -> None:
    public = _private_key(key_data).public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1)
    ring = key_ring(ZONE, {"zone-token-signing-public-key-1": base64.b64encode(pem).decode()})
    token = tokens.issue(_rings(key_data)["zone"], EDGE, HOUR, now).reveal()
    assert tokens.verify(ring, token, now).scope == ("ingress", "cp")


def test_a_token_ends(user_ring, now) -> None:
    token = tokens.issue(user_ring, ALICE, HOUR, now).reveal()
    assert tokens.verify(user_ring, token, now + HOUR + 4 * SECOND).name == "alice"
    assert _refusal(user_ring, token, now + HOUR + 5 * SECOND) == "token is expired"


def test_a_token_begins(user_ring, now) -> None:
    token = tokens.issue(user_ring, ALICE, HOUR, now).reveal()
    assert tokens.verify(user_ring, token, now - 10 * SECOND).name == "alice"
    assert _refusal(user_ring, token, now - 11 * SECOND).startswith("token is not valid yet")


def test_a_revoked_token_is_refused_and_others_hold(key_data, user_ring, now) -> None:
    bad, good = (tokens.issue(user_ring, ALICE, HOUR, now).reveal() for _ in range(2))
    listed = base64.b64encode(f"other,{tokens.verify(user_ring, bad, now).jti}\n".encode()).decode()
    ring = key_ring(USER, {"user-token-signing-key-1": key_data, "user-token-revocations": listed})
    assert _refusal(ring, bad, now) == "token is revoked"
    assert tokens.verify(ring, good, now).name == "alice"


def test_no_token_holds_while_the_revocation_list_cannot_be_read(key_data, user_ring, now) -> None:
    ring = key_ring(USER, {"user-token-signing-key-1": key_data, "user-token-revocations": "%"})
    token = tokens.issue(user_ring, ALICE, HOUR, now).reveal()
    assert _refusal(ring, token, now) == "could not check if the token is revoked"


def test_the_right_serial_with_the_wrong_key_is_refused(user_ring, other_key_data, now) -> None:
    token = _signed(other_key_data, _user(now))
    assert _refusal(user_ring, token, now) == "could not parse token: signature is invalid"


@pytest.mark.parametrize("claim", ["Name", "Groups", "exp"])
def test_a_changed_body_is_refused(claim, user_ring, key_data, now) -> None:
    head, _, signature = _signed(key_data, _user(now)).split(".")
    changed = _user(now, **{claim: {"Name": "root", "Groups": ["mesh-system:admin"], "exp": 2**40}[claim]})
    body = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
    assert "signature" in _refusal(user_ring, f"{head}.{body}.{signature}", now)


def test_a_token_without_signature_is_refused(user_ring, now) -> None:
    body = json.dumps(_user(now)).encode()
    none = _forged({"alg": "none", "kid": "1"}, body)
    assert _refusal(user_ring, none, now) == "unknown token alg. Allowed alg is RS256"
    assert "not a signed JWT" in _refusal(user_ring, none.rsplit(".", 1)[0] + ".", now)
    assert "not a signed JWT" in _refusal(user_ring, none.rsplit(".", 1)[0], now)


@pytest.mark.parametrize("form", ["SubjectPublicKeyInfo", "PKCS1"])
def test_the_public_key_does_not_pass_for_a_shared_secret(form, key_data, user_ring, now) -> None:
    public = _private_key(key_data).public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, getattr(serialization.PublicFormat, form))
    unsigned = _forged({"alg": "HS256", "kid": "1"}, json.dumps(_user(now)).encode()).rsplit(".", 1)[0]
    mac = hmac.new(pem, unsigned.encode(), hashlib.sha256).digest()
    token = f"{unsigned}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert _refusal(user_ring, token, now) == "unknown token alg. Allowed alg is RS256"


@pytest.mark.parametrize("alg", ["rs256", "RS512", "PS256", "ES256", "", None, 5, ["RS256"], {"RS256": 1}])
def test_an_other_algorithm_is_refused(alg, user_ring, now) -> None:
    assert "alg" in _refusal(user_ring, _forged({"alg": alg, "kid": "1"}), now)


@pytest.mark.parametrize(
    "kid",
    [1, 1.0, None, True, [], ["1"], {}, "", "x", "-1", "01", " 1", "1\n", "\u0661", "9" * 400, "../1", "0x1"],
)
def test_a_kid_that_is_no_serial_is_refused(kid, user_ring, now) -> None:
    reason = _refusal(user_ring, _forged({"alg": "RS256", "kid": kid}), now)
    assert reason in (
        "kid header is invalid. Expected string of digits.",
        "could not parse token: its header cannot be read",
    )


def test_a_missing_kid_is_refused(user_ring, key_data, now) -> None:
    assert "kid header is invalid" in _refusal(user_ring, _signed(key_data, _user(now), header={}), now)


def test_a_huge_token_is_refused_before_it_is_read(user_ring, key_data, now) -> None:
    token = _signed(key_data, _user(now, Groups=["g" * 50] * 200))
    assert len(token) > tokens.TOKEN_BYTES_MAX
    reason = "could not parse token: it is longer than 8192 bytes"
    assert _refusal(user_ring, token, now) == reason
    assert _refusal(user_ring, "a" * 10_000_000, now) == reason


def test_a_token_just_under_the_limit_holds(user_ring, key_data, now) -> None:
    token = _signed(key_data, _user(now, Groups=["g" * 50] * 100))
    assert len(token) < tokens.TOKEN_BYTES_MAX
    assert len(tokens.verify(user_ring, token, now).groups) == 100


@pytest.mark.parametrize(
    "deep", [b"[" * 5000, b'{"a":' * 1000, b'{"alg":"RS256","kid":"1","x":' + b"[" * 5000]
)
def test_a_deeply_nested_header_is_refused(deep, user_ring, now) -> None:
    _refusal(user_ring, _forged(deep), now)


@pytest.mark.parametrize("spoken", SAMPLES)
@pytest.mark.parametrize("asked", SAMPLES)
def test_a_token_of_another_purpose_is_refused_even_with_the_same_key(spoken, asked, key_data, now) -> None:
    rings = _rings(key_data)
    token = tokens.issue(rings[spoken], SAMPLES[spoken], HOUR, now).reveal()
    if spoken == asked:
        assert tokens.verify(rings[asked], token, now)
    else:
        assert _refusal(rings[asked], token, now) == f"token is not a {asked} token"


def test_a_dataplane_token_with_nothing_bound_is_no_user_token(key_data, now) -> None:
    rings = _rings(key_data)
    token = tokens.issue(rings["dataplane"], DataplaneClaims(name="admin", mesh="m"), HOUR, now).reveal()
    assert _refusal(rings["user"], token, now) == "token is not a user token"


def test_a_token_of_another_mesh_is_refused_even_with_the_same_key(key_data, now) -> None:
    other = key_ring(DATAPLANE, {DATAPLANE.key_name(1, "n"): key_data}, "n")
    token = tokens.issue(_rings(key_data)["dataplane"], PROXY, HOUR, now).reveal()
    assert _refusal(other, token, now) == 'token is not for mesh "n"'


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Name": ...}, "token is not a user token"),
        ({"Groups": ...}, "token is not a user token"),
        ({"Name": 5}, "token is not a user token"),
        ({"Name": None}, "token is not a user token"),
        ({"Name": ""}, "token names no user"),
        ({"Groups": "a"}, "token is not a user token"),
        ({"Groups": [1]}, "token is not a user token"),
        ({"Mesh": "m"}, "token is not a user token"),
        ({"Mesh": None}, "token is not a user token"),
        ({"Zone": ""}, "token is not a user token"),
        ({"exp": ...}, "token is expired"),
        ({"exp": "tomorrow"}, "token is not a user token"),
        ({"exp": True}, "token is not a user token"),
        ({"nbf": 10**30}, "token is not valid yet; compare the clocks of issuer and control plane"),
        ({"jti": ...}, "token has no id (jti), so it could not be revoked; issue a new one"),
        ({"jti": 7}, "token is not a user token"),
    ],
)
def test_claims_of_another_shape_are_refused(changes, reason, user_ring, key_data, now) -> None:
    assert _refusal(user_ring, _signed(key_data, _user(now, **changes)), now) == reason


@pytest.mark.parametrize(
    "changes", [{"Groups": None}, {"iss": "cli", "aud": "x"}, {"exp": 1e12}, {"nbf": ...}]
)
def test_what_other_issuers_write_is_taken(changes, user_ring, key_data, now) -> None:
    assert tokens.verify(user_ring, _signed(key_data, _user(now, **changes)), now).name == "alice"


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"Name":"\xff"}', b"[" * 5000])
def test_a_signed_body_that_is_no_object_is_refused(body, user_ring, key_data, now) -> None:
    _refusal(user_ring, _signed(key_data, body), now)


def test_a_reason_repeats_nothing_of_the_token(user_ring, key_data, now) -> None:
    for token in (
        _forged({"alg": "hunter2", "kid": "1"}),
        _forged({"alg": "RS256", "kid": "hunter2"}),
        _forged({"alg": "RS256", "kid": "1", "crit": ["hunter2"]}),
        _signed(key_data, _user(now, exp="hunter2")),
        _signed(key_data, _user(now, hunter2=1, exp=1)),
    ):
        assert "hunter2" not in _refusal(user_ring, token, now)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(
    ["Name", "Groups", "Mesh", "Tags", "Type", "Zone", "Scope", "exp", "nbf", "iat", "jti"]
)
_deeper = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _never_raises_anything_else(ring, token: str, now) -> None:
    with contextlib.suppress(Unauthenticated):
        assert tokens.verify(ring, token, now) is not None


@pytest.mark.property
@_deeper
@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_any_text_is_refused_and_nothing_breaks(user_ring, now, text) -> None:
    _refusal(user_ring, text, now)
    _never_raises_anything_else(user_ring, text, now)


@pytest.mark.property
@_deeper
@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), _json) | _json | st.binary(),
    st.binary(),
    st.binary(max_size=300),
)
def test_any_three_parts_are_refused_and_nothing_breaks(user_ring, now, header, body, signature) -> None:
    _refusal(user_ring, _forged(header, body, signature), now)


@pytest.mark.property
@_deeper
@given(st.dictionaries(_names, _json) | _json | st.binary())
def test_any_signed_body_is_read_or_refused(user_ring, key_data, now, body) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    for ring in _rings(key_data).values():
        _never_raises_anything_else(ring, _signed(key_data, raw), now)


def test_a_token_has_one_spelling(user_ring, key_data, now) -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    token = _signed(key_data, _user(now))
    assert tokens.verify(user_ring, token, now).name == "alice"
    last = letters.index(token[-1])
    assert last % 16 == 0, "256 bytes leave four bits that say nothing"
    for other in range(last + 1, last + 16):
        assert "could not parse token" in _refusal(user_ring, token[:-1] + letters[other], now)


@pytest.mark.parametrize("more", [{"crit": ["exp"]}, {"crit": []}, {"b64": False, "crit": ["b64"]}])
def test_a_header_that_asks_for_more_than_is_known_here_is_refused(more, user_ring, now) -> None:
    reason = "could not parse token: its header cannot be read"
    assert _refusal(user_ring, _forged({"alg": "RS256", "kid": "1", **more}), now) == reason


def test_a_token_that_was_shown_is_asked_again(key_data, other_key_data, now):
    def ring(data=key_data, serial=1, revoked=""):
        secrets = {USER.key_name(serial): data}
        if revoked:
            secrets[USER.revocations_name()] = revoked
        return key_ring(USER, secrets)

    first = ring()
    text = tokens.issue(first, UserClaims(name="joe", groups=()), HOUR, now).reveal()
    shown = tokens.verified_token(first, text, now)
    assert shown.claims.name == "joe"
    shown.check(first, now)
    shown.check(ring(), now)
    listed = base64.b64encode(shown.claims.jti.encode()).decode()
    for other, at, words in (
        (first, now + 2 * HOUR, "token is expired"),
        (ring(revoked=listed), now, "token is revoked"),
        (ring(revoked="no base64"), now, "could not check if the token is revoked"),
        (ring(other_key_data), now, "signature is invalid"),
        (ring(serial=2), now, "there is no signing key with serial number 1"),
    ):
        with pytest.raises(Unauthenticated) as refused:
            shown.check(other, at)
        assert words in str(refused.value)
    shown.check(ring(), now)
    assert text not in repr(shown)
