"""Names and the suffix of synced objects."""

import pytest

from koguma.model import names


@pytest.mark.parametrize(
    ("mesh", "name", "zone", "namespace", "suffix"),
    [
        ("producer-policy-flow", "to-test-server", "kuma-2", "producer-policy-flow-ns", "4cx47v8b5wcd4764"),
        ("producer-policy-flow", "to-test-server", "", "producer-policy-flow-ns", "5wxzc95dxv8zb244"),
        ("producer-policy-flow", "to-test-server", "zone-1", "producer-policy-flow-ns", "xw65cwcxxw4f7fvw"),
        ("default", "without-namespace", "", "", "c5v4498z5w4x9bcx"),
    ],
)
def test_a_synced_name_ends_as_kumas_does(mesh, name, zone, namespace, suffix):
    assert names.hash_suffix(mesh, name, zone, namespace) == suffix
    assert names.hashed(mesh, name, zone, namespace) == f"{name}-{suffix}"


def test_a_long_name_is_cut_before_its_suffix():
    hashed = names.hashed("default", "a" * 253)
    assert len(hashed) == 253
    assert hashed.startswith("a" * 236 + "-")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "cannot be empty"),
        ("a" * 254, "value length must less or equal 253"),
        ("Upper", names.SUBDOMAIN_MESSAGE),
        ("end-", names.SUBDOMAIN_MESSAGE),
        ("a..b", names.SUBDOMAIN_MESSAGE),
        ("a\n", names.SUBDOMAIN_MESSAGE),
    ],
)
def test_a_bad_name_is_refused_in_kumas_words(value, message):
    assert [violation.message for violation in names.identifier(value, "name")] == [message]


def test_good_names_pass():
    assert list(names.identifier("backend.kuma-demo", "name")) == []
    assert names.is_dns1035_label("mesh-1")
    assert not names.is_dns1035_label("1-mesh")
    assert names.is_dns_label("1-ns")
