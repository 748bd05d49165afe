"""Labels: the well-known keys, and the syntax that keys and values obey."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from koguma.model.violation import Violation, key

MESH: Final = "kuma.io/mesh"
DISPLAY_NAME: Final = "kuma.io/display-name"
ORIGIN: Final = "kuma.io/origin"
ZONE: Final = "kuma.io/zone"
ENV: Final = "kuma.io/env"
NAMESPACE: Final = "k8s.kuma.io/namespace"
ROLE: Final = "kuma.io/policy-role"
EFFECT: Final = "kuma.io/effect"
MANAGED_BY: Final = "kuma.io/managed-by"
WORKLOAD: Final = "kuma.io/workload"
PROXY_TYPE: Final = "kuma.io/proxy-type"  # sidecar, gateway, zoneingress or zoneegress
KDS_SYNC: Final = "kuma.io/kds-sync"
REGISTERED_BY: Final = "koguma.io/registered-by"  # `proxy`: a Dataplane that its proxy brought
INSTANCE: Final = "koguma.io/instance"  # which run of that proxy brought it
READY: Final = "koguma.io/ready"  # an annotation: the run that has taken its configuration
# An annotation: who made an object refer to which Secret, and could read it then.
SECRET_READERS: Final = "koguma.io/secret-readers"  # noqa: S105 - a name
GRACE_STARTED: Final = "kuma.io/deletion-grace-period-started-at"  # a time, which label syntax forbids

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH_MAX = 63
_PREFIX_LENGTH_MAX = 253

_NAME_WORDS = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation"
    " is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and"
    " must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345',"
    " regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_PREFIX_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and"
    " must start and end with an alphanumeric character"
)


def ready_mark(labels: Mapping[str, str]) -> str:
    """What the annotation of a registered object says once its proxy has its configuration."""
    return labels.get(INSTANCE) or "yes"


def syntax(labels: Mapping[str, str], field: str = "labels") -> Iterator[Violation]:
    """What Kubernetes would refuse in these keys and values, in key order."""
    for name in sorted(set(labels) - {GRACE_STARTED}):
        at = key(field, name)
        for message in (*_key_messages(name), *_value_messages(labels[name])):
            yield Violation(at, message, "label")


def _key_messages(name: str) -> Iterator[str]:
    prefix, slash, last = name.rpartition("/")
    if "/" in prefix:
        yield f"a qualified name {_NAME_WORDS} with an optional DNS subdomain prefix and '/'"
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash and len(prefix) > _PREFIX_LENGTH_MAX:
        yield f"prefix part must be no more than {_PREFIX_LENGTH_MAX} characters"
    elif slash and not _PREFIX.fullmatch(prefix):
        yield f"prefix part {_PREFIX_WORDS}"
    if not last:
        yield "name part must be non-empty"
    elif len(last) > _NAME_LENGTH_MAX:
        yield f"name part must be no more than {_NAME_LENGTH_MAX} characters"
    elif not _NAME.fullmatch(last):
        yield f"name part {_NAME_WORDS}"


def _value_messages(value: str) -> Iterator[str]:
    if len(value) > _NAME_LENGTH_MAX:
        yield f"must be no more than {_NAME_LENGTH_MAX} characters"
    elif value and not _NAME.fullmatch(value):
        yield _VALUE_WORDS
