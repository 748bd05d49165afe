"""Signing keys are read from secrets by name, and a bad one blocks nothing else."""

import base64

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from koguma.identity import signing_keys
from koguma.identity.claims import DATAPLANE, USER, ZONE
from koguma.identity.signing_keys import key_ring

_PEM = serialization.Encoding.PEM
_CLEAR = serialization.NoEncryption()


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _private(data: str):
    return serialization.load_pem_private_key(base64.b64decode(data), password=None)


def _public_data(data: str, form=serialization.PublicFormat.PKCS1) -> str:
    return _encoded(_private(data).public_key().public_bytes(_PEM, form))


def test_a_generated_key_is_in_the_form_that_kuma_reads(key_data) -> None:
    assert base64.b64decode(key_data).startswith(b"-----BEGIN RSA PRIVATE KEY-----\n")
    assert _private(key_data).key_size == 2048


def test_a_generated_key_does_not_print_itself() -> None:
    assert repr(signing_keys.generate()) == "«redacted»"


@pytest.mark.parametrize(
    ("purpose", "mesh", "key", "revocations", "kind"),
    [
        (USER, "", "user-token-signing-key-3", "user-token-revocations", "GlobalSecret"),
        (ZONE, "", "zone-token-signing-key-3", "zone-token-revocations", "GlobalSecret"),
        (DATAPLANE, "m", "dataplane-token-signing-key-m-3", "dataplane-token-revocations-m", "Secret"),
    ],
)
def test_secrets_are_named_as_in_kuma(purpose, mesh, key, revocations, kind) -> None:
    assert purpose.key_name(3, mesh) == key
    assert purpose.revocations_name(mesh) == revocations
    assert purpose.secret_kind == kind


def test_a_mesh_goes_with_dataplane_keys_only() -> None:
    with pytest.raises(AssertionError):
        USER.key_name(1, "default")
    with pytest.raises(AssertionError):
        DATAPLANE.key_name(1)


def test_the_newest_key_signs_and_all_verify(key_data, other_key_data) -> None:
    ring = key_ring(USER, {"user-token-signing-key-10": key_data, "user-token-signing-key-9": other_key_data})
    assert ring.signer is not None
    assert ring.signer[0] == "10"
    assert set(ring.verifiers) == {"9", "10"}
    assert ring.problems == ()


def test_a_ring_takes_only_what_bears_its_name(key_data) -> None:
    names = (
        "zone-token-signing-key-1",
        "user-token-signing-key",
        "user-token-signing-key-",
        "user-token-signing-key-01",
        "user-token-signing-key-1x",
        "user-token-signing-key-٣",
        "user-token-signing-key--1",
        "dataplane-token-signing-key-default-1",
    )
    ring = key_ring(USER, dict.fromkeys(names, key_data))
    assert (ring.signer, dict(ring.verifiers), ring.problems) == (None, {}, ())


def test_a_mesh_whose_name_ends_like_a_serial_keeps_its_keys_to_itself(key_data) -> None:
    secrets = {DATAPLANE.key_name(1, "a-1"): key_data}
    assert key_ring(DATAPLANE, secrets, "a").signer is None
    assert key_ring(DATAPLANE, secrets, "a-1").signer is not None


@pytest.mark.parametrize(
    "form", [serialization.PublicFormat.PKCS1, serialization.PublicFormat.SubjectPublicKeyInfo]
)
def test_a_public_key_verifies_and_does_not_sign(key_data, form) -> None:
    ring = key_ring(ZONE, {"zone-token-signing-public-key-2": _public_data(key_data, form)})
    assert set(ring.verifiers) == {"2"}
    assert ring.signer is None
    assert ring.problems == ()


def test_a_bare_der_key_of_an_early_kuma_is_read(key_data) -> None:
    der = _private(key_data).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, _CLEAR
    )
    assert key_ring(USER, {"user-token-signing-key-1": _encoded(der)}).signer is not None


def _bad_keys():
    curve = ec.generate_private_key(ec.SECP256R1())
    short = rsa.generate_private_key(65537, 1024)
    pkcs8 = serialization.PrivateFormat.PKCS8
    locked = serialization.BestAvailableEncryption(b"word")
    yield "no base64", "!!not-base64!!"
    yield "nothing", ""
    yield "no key", _encoded(b"hunter2")
    yield "a torn PEM", _encoded(b"-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n")
    yield "a curve key", _encoded(curve.private_bytes(_PEM, pkcs8, _CLEAR))
    yield "a short key", _encoded(short.private_bytes(_PEM, pkcs8, _CLEAR))
    yield "a locked key", _encoded(short.private_bytes(_PEM, pkcs8, locked))
    yield "a text of other letters", "ключ"


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in _bad_keys()])
@pytest.mark.parametrize("name", ["user-token-signing-key-2", "user-token-signing-public-key-2"])
def test_an_unreadable_key_is_reported_by_name_and_the_others_go_on(name, data, key_data) -> None:
    ring = key_ring(USER, {"user-token-signing-key-1": key_data, name: data})
    assert ring.signer is not None
    assert ring.signer[0] == "1"
    (problem,) = ring.problems
    assert problem.startswith(f'GlobalSecret "{name}" does not hold an RSA ')
    assert "hunter2" not in problem


def test_a_private_key_under_a_public_name_is_refused(key_data) -> None:
    ring = key_ring(ZONE, {"zone-token-signing-public-key-1": key_data})
    assert not ring.verifiers
    assert len(ring.problems) == 1


@pytest.mark.parametrize(
    ("content", "expect"),
    [("", set()), ("a", {"a"}), ("a,b\n", {"a", "b"}), (" a , b ,,\n", {"a", "b"}), ("a\nb", {"a", "b"})],
)
def test_a_revocation_list_is_read_with_commas_and_lines(content, expect) -> None:
    ring = key_ring(USER, {"user-token-revocations": _encoded(content.encode())})
    assert ring.revoked == expect


def test_a_revocation_list_that_cannot_be_read_is_a_problem() -> None:
    ring = key_ring(USER, {"user-token-revocations": "%%%"})
    assert ring.revoked is None
    (problem,) = ring.problems
    assert '"user-token-revocations"' in problem


def test_the_generation_changes_exactly_with_what_verifies(key_data, other_key_data) -> None:
    one = {"user-token-signing-key-1": key_data}
    generations = [
        key_ring(USER, secrets).generation
        for secrets in (
            {},
            one,
            {**one, "user-token-signing-key-2": other_key_data},
            {"user-token-signing-key-1": other_key_data},
            {**one, "user-token-revocations": _encoded(b"a")},
            {**one, "user-token-revocations": _encoded(b"a,b")},
            {**one, "user-token-revocations": "%"},
        )
    ]
    assert len(set(generations)) == len(generations)
    same = {**one, "unrelated": "x", "user-token-revocations": ""}
    assert key_ring(USER, same).generation == generations[1]


def test_equal_keys_of_other_purposes_are_other_generations(key_data) -> None:
    rings = (
        key_ring(USER, {USER.key_name(1): key_data}),
        key_ring(ZONE, {ZONE.key_name(1): key_data}),
        key_ring(DATAPLANE, {DATAPLANE.key_name(1, "a"): key_data}, "a"),
        key_ring(DATAPLANE, {DATAPLANE.key_name(1, "b"): key_data}, "b"),
    )
    assert len({ring.generation for ring in rings}) == 4


def test_a_key_whose_parts_are_of_two_keys_is_reported(key_data, other_key_data) -> None:
    mine, other = _private(key_data), _private(other_key_data)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    der = mine.private_bytes(serialization.Encoding.DER, form, _CLEAR)
    moduli = [each.public_key().public_numbers().n.to_bytes(256, "big") for each in (mine, other)]
    mixed = der.replace(*moduli)
    assert mixed != der
    ring = key_ring(USER, {"user-token-signing-key-1": _encoded(mixed)})
    assert ring.signer is None
    assert not ring.verifiers
    assert len(ring.problems) == 1
