"""Tags: the rules for tag maps on proxies, gateways and selectors, with Kuma's messages."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from koguma.model.violation import Violation, key

SERVICE: Final = "kuma.io/service"
PROTOCOL: Final = "kuma.io/protocol"
ZONE: Final = "kuma.io/zone"
EXTERNAL_SERVICE_NAME: Final = "kuma.io/external-service-name"
ANY: Final = "*"

PROTOCOLS: Final = ("grpc", "http", "http2", "kafka", "tcp")
# Kubernetes' words for what a Service's port speaks: HTTP/2 without TLS, and WebSocket, which begins as HTTP.
KUBERNETES_PROTOCOLS: Final[Mapping[str, str]] = {"kubernetes.io/h2c": "http2", "kubernetes.io/ws": "http"}

_NAME = re.compile(r"[a-zA-Z0-9.\-_:/]*")
_VALUE = re.compile(r"[a-zA-Z0-9.\-_:]*")
_SELECTOR_VALUE = re.compile(r"[a-zA-Z0-9.\-_:/]*")

_NAME_MESSAGE = "tag name must consist of alphanumeric characters, dots, dashes, slashes and underscores"
_VALUE_MESSAGE = "tag value must consist of alphanumeric characters, dots, dashes and underscores"
_SELECTOR_MESSAGE = (
    'tag value must consist of alphanumeric characters, dots, dashes, slashes and underscores or be "*"'
)


def violations(
    tags: Mapping[str, str],
    path: str,
    *,
    selector: bool = False,
    needs_one: bool = False,
    needs_service: bool = False,
    forbidden: Collection[str] = (),
) -> Iterator[Violation]:
    """What is wrong with a tag map, keys in order. A selector's value may be `*`."""
    if needs_one and not tags:
        yield Violation(path, "must have at least one tag", "required")
    for name in sorted(tags):
        yield from _entry(name, tags[name], path, selector=selector)
        if name in forbidden:
            yield Violation(key(path, name), f'tag name must not be "{name}"', "forbidden")
    if needs_service and SERVICE not in tags:
        yield Violation(path, f'mandatory tag "{SERVICE}" is missing', "required")


def _entry(name: str, value: str, path: str, *, selector: bool) -> Iterator[Violation]:
    if not name:
        yield Violation(path, "tag name must be non-empty", "required")
    elif not _NAME.fullmatch(name):
        yield Violation(key(path, name), _NAME_MESSAGE, "tag")
    if not value:
        yield Violation(key(path, name), "tag value must be non-empty", "required")
    elif selector:
        if value != ANY and not _SELECTOR_VALUE.fullmatch(value):
            yield Violation(key(path, name), _SELECTOR_MESSAGE, "tag")
    elif not _VALUE.fullmatch(value):
        yield Violation(key(path, name), _VALUE_MESSAGE, "tag")
