"""Names: the rules that names obey, and the name under which a synced object is stored.

The message texts are Kuma's, because its users and tools know them.
"""

import re
from collections.abc import Iterator

from koguma.model.violation import Violation

NAME_LENGTH_MAX = 253
LABEL_LENGTH_MAX = 63

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS1123_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

SUBDOMAIN_MESSAGE = (
    "invalid characters. A lowercase RFC 1123 subdomain must consist of lower case alphanumeric"
    " characters, '-' or '.', and must start and end with an alphanumeric character"
)
DNS1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an"
    " alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123',"
    " regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def identifier(value: str, field: str) -> Iterator[Violation]:
    """The violations of an RFC 1123 subdomain name: 1 to 253 characters."""
    if not value:
        yield Violation(field, "cannot be empty", "required")
    elif len(value) > NAME_LENGTH_MAX:
        yield Violation(field, f"value length must less or equal {NAME_LENGTH_MAX}", "length")
    elif not _SUBDOMAIN.fullmatch(value):
        yield Violation(field, SUBDOMAIN_MESSAGE, "name")


def is_subdomain(value: str) -> bool:
    """Whether `value` is an RFC 1123 subdomain."""
    return len(value) <= NAME_LENGTH_MAX and _SUBDOMAIN.fullmatch(value) is not None


def is_dns_label(value: str) -> bool:
    """Whether `value` is an RFC 1123 label, as a namespace must be."""
    return len(value) <= LABEL_LENGTH_MAX and _DNS1123_LABEL.fullmatch(value) is not None


def is_dns1035_label(value: str) -> bool:
    """Whether `value` is an RFC 1035 label: begins with a letter, 63 characters at most."""
    return len(value) <= LABEL_LENGTH_MAX and _DNS1035.fullmatch(value) is not None


_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_HASHED_PREFIX_MAX = NAME_LENGTH_MAX - 17


def hash_suffix(mesh: str, name: str, zone: str = "", namespace: str = "") -> str:
    """Kuma's 16 letters that keep apart equal names of several meshes, zones and namespaces."""
    value = _FNV_OFFSET
    for byte in f"{mesh}{name}{zone}{namespace}".encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return "".join(_SAFE_ALPHABET[ord(digit) % 27] for digit in f"{value:016x}")


def hashed(mesh: str, name: str, zone: str = "", namespace: str = "") -> str:
    """The core name of an object that came by sync (Kuma MADR 029)."""
    return f"{name[:_HASHED_PREFIX_MAX]}-{hash_suffix(mesh, name, zone, namespace)}"
