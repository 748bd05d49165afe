"""Certificate facts: for whom a certificate is, and whether it may vouch for others."""

import pytest

from koguma.identity import certificate_facts, certificates


@pytest.fixture
def authority(now):
    return certificates.make_authority(certificates.make_key(), now)


def test_names_are_those_that_the_certificate_was_made_for(authority, now):
    made = certificates.make_server(authority, ["localhost", "127.0.0.1", "::1", "CP.example.com"], now)
    assert certificate_facts.names(made.certificate) == ("127.0.0.1", "::1", "cp.example.com", "localhost")


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_cannot_be_read_is_for_nobody_and_vouches_for_nobody(text):
    assert certificate_facts.names(text) == ()
    assert not certificate_facts.is_readable(text)
    assert not certificate_facts.is_ca(text)


def test_a_ca_has_no_names_and_vouches(authority, now):
    server = certificates.make_server(authority, ["localhost"], now).certificate
    assert certificate_facts.names(authority.certificate) == ()
    assert certificate_facts.is_ca(authority.certificate)
    assert not certificate_facts.is_ca(server)
    assert certificate_facts.is_ca(server + authority.certificate), "a chain has its CA with it"


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("0:0::1", True),
        ("127.0.0.2", False),
        ("a.example.com", True),
        ("example.com", False),
        ("a.b.example.com", False),
        ("com", False),
        ("", False),
    ],
)
def test_a_host_fits_as_in_tls(host, fits):
    assert certificate_facts.matches_host(("localhost", "127.0.0.1", "::1", "*.example.com"), host) is fits
