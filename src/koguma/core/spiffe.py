"""Spiffe: who a proxy is to others, as the URIs that stand in its certificate.

Callers are let in by these names: a service is `spiffe://<mesh>/<service>`, a tag is `kuma://<tag>/<value>`.
Legal names and tags consist of what may stand in a URI as it is, so nothing is escaped.
"""

from collections.abc import Iterator
from typing import Final

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.world import Proxy
from koguma.model import labels, tags
from koguma.model.resource import Key

_TAG: Final = "kuma://"


def service_id(mesh: str, service: str) -> str:
    """The identity of a service."""
    return f"spiffe://{mesh}/{service}"


def tag_id(tag: str, value: str) -> str:
    """The identity of whoever has a tag."""
    return f"{_TAG}{tag}/{value}"


def services(proxy: Proxy) -> tuple[str, ...]:
    """The services that a proxy speaks for: by its tags, or else by a label, or else by its own name."""
    tagged = {value for tag, value in _tags(proxy) if tag == tags.SERVICE and value}
    if tagged:
        return tuple(sorted(tagged))
    said = dict(proxy.labels)
    return (said.get(tags.SERVICE) or said.get(labels.WORKLOAD) or proxy.key.name,)


def uris(mesh: str, proxy: Proxy) -> tuple[str, ...]:
    """All names of a proxy: its services first, then its tags, each once and in order."""
    of_services = (service_id(mesh, service) for service in services(proxy))
    of_tags = (tag_id(tag, value) for tag, value in sorted(set(_tags(proxy))))
    return (*of_services, *of_tags)


def vouched(uris: tuple[str, ...], named: frozenset[str]) -> tuple[str, ...]:
    """The names of a proxy without tags that it says of itself and its token does not name.

    Its services are in the token, or it would not be here; its zone is where it runs.
    """
    certain = named | {tags.SERVICE, tags.ZONE}
    return tuple(uri for uri in uris if not uri.startswith(_TAG) or _tag_in(uri) in certain)


def _tag_in(uri: str) -> str:
    """The tag in its URI; a tag may have a slash, its value has none."""
    return uri.removeprefix(_TAG).rpartition("/")[0]


def _tags(proxy: Proxy) -> Iterator[tuple[str, str]]:
    """All tags of a proxy. As in Kuma the zone is one of them, and is where it runs, whatever was written."""
    written = (*(inbound.tags for inbound in proxy.inbounds), proxy.gateway_tags)
    zone = proxy.key.zone
    yield from ((tag, value) for own in written for tag, value in own if tag != tags.ZONE or not zone)
    if zone:
        yield tags.ZONE, zone


@question
def identity(db: Db, key: Key) -> tuple[str, ...]:
    """The names of the proxy under a key; none where there is no such proxy."""
    proxy = world.proxy(db, key)
    return () if proxy is None else uris(key.mesh, proxy)
