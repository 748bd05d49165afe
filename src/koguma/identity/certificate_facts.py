"""Certificate facts: for whom a certificate is, and whether it may vouch for others.

What a proxy must know before it trusts a control plane: the name by which it calls it has to be in the
certificate, and what it is given to verify with has to be a CA.
"""

import ipaddress
from collections.abc import Sequence

from cryptography import x509


def names(certificate: str) -> tuple[str, ...]:
    """The DNS names and IP addresses that the first certificate of a PEM is for, sorted."""
    found = _loaded(certificate)
    try:
        said = found[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (IndexError, x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return ()
    hosts = said.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in said.get_values_for_type(x509.IPAddress)]
    return tuple(sorted({*(host.lower() for host in hosts), *addresses}))


def is_for(names: Sequence[str], host: str) -> bool:
    """Whether a certificate for `names` is for this host; `*.` stands for one label, as in TLS."""
    wanted = normal(host)
    _, _, parent = wanted.partition(".")
    return wanted in names or (not is_address(wanted) and bool(parent) and f"*.{parent}" in names)


def normal(host: str) -> str:
    """A host in the one spelling by which it is compared: lower case, no final dot, addresses shortened."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def is_address(host: str) -> bool:
    """Whether a host is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_readable(certificate: str) -> bool:
    """Whether a PEM holds certificates."""
    return bool(_loaded(certificate))


def is_authority(certificate: str) -> bool:
    """Whether some certificate of a PEM may vouch for others; an old one that does not say may do so."""
    return any(_may_vouch(each) for each in _loaded(certificate))


def _loaded(certificate: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(certificate.encode("utf-8", "replace"))
    except ValueError:
        return []


def _may_vouch(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return True
    except (x509.DuplicateExtension, ValueError):
        return False
