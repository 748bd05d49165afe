"""Certificate facts: the names in a certificate, and whether it is a CA.

A proxy needs them before it can trust a control plane: the name by which it connects has to be in the
certificate, and the certificate that it verifies with has to be a CA.
"""

import ipaddress
from collections.abc import Sequence

from cryptography import x509


def names(certificate: str) -> tuple[str, ...]:
    """The DNS names and IP addresses in the first certificate of a PEM, sorted."""
    loaded = _loaded(certificate)
    try:
        alternative = loaded[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (IndexError, x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return ()
    hosts = alternative.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in alternative.get_values_for_type(x509.IPAddress)]
    return tuple(sorted({*(host.lower() for host in hosts), *addresses}))


def matches_host(names: Sequence[str], host: str) -> bool:
    """Whether a certificate with `names` is valid for this host; `*.` matches one label, as in TLS."""
    host = normalized_host(host)
    _, _, parent = host.partition(".")
    return host in names or (not is_address(host) and bool(parent) and f"*.{parent}" in names)


def normalized_host(host: str) -> str:
    """A host as it is compared: lower case, no final dot, addresses shortened."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_readable(certificate: str) -> bool:
    """Whether a PEM holds certificates."""
    return bool(_loaded(certificate))


def is_ca(certificate: str) -> bool:
    """Whether a PEM contains a CA; a certificate without basic constraints may be one (X.509 v1)."""
    return any(map(_is_ca, _loaded(certificate)))


def _loaded(certificate: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(certificate.encode("utf-8", "replace"))
    except ValueError:
        return []


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return True
    except (x509.DuplicateExtension, ValueError):
        return False
