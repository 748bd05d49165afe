"""Spiffe: the identities of a proxy, as the URIs in its certificate.

Permissions match clients by these URIs: a service is `spiffe://<mesh>/<service>`, a tag is
`kuma://<tag>/<value>`. Legal names and tags contain only characters that need no escaping in a URI.
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
    """The identity of proxies with a tag."""
    return f"{_TAG}{tag}/{value}"


def services(proxy: Proxy) -> tuple[str, ...]:
    """The services of a proxy: by its tags, or else by a label, or else by its own name."""
    tagged = {value for tag, value in _tags(proxy) if tag == tags.SERVICE and value}
    if tagged:
        return tuple(sorted(tagged))
    own_labels = dict(proxy.labels)
    return (own_labels.get(tags.SERVICE) or own_labels.get(labels.WORKLOAD) or proxy.key.name,)


def uris(mesh: str, proxy: Proxy) -> tuple[str, ...]:
    """All identities of a proxy: its services first, then its tags, each once and in order."""
    of_services = (service_id(mesh, service) for service in services(proxy))
    of_tags = (tag_id(tag, value) for tag, value in sorted(set(_tags(proxy))))
    return (*of_services, *of_tags)


def vouched(uris: tuple[str, ...], vouched_tags: frozenset[str]) -> tuple[str, ...]:
    """The identities of a proxy without tags that its token does not vouch for.

    Its services are always in the token (otherwise it is not admitted), and its zone is where it connects.
    """
    trusted = vouched_tags | {tags.SERVICE, tags.ZONE}
    return tuple(uri for uri in uris if not uri.startswith(_TAG) or _tag_in(uri) in trusted)


def _tag_in(uri: str) -> str:
    """The tag in a URI; a tag may contain a slash, its value may not."""
    return uri.removeprefix(_TAG).rpartition("/")[0]


def _tags(proxy: Proxy) -> Iterator[tuple[str, str]]:
    """All tags of a proxy. As in Kuma the zone is one of them, and is the real one, whatever was written."""
    tag_sets = (*(inbound.tags for inbound in proxy.inbounds), proxy.gateway_tags)
    zone = proxy.key.zone
    yield from ((tag, value) for each in tag_sets for tag, value in each if tag != tags.ZONE or not zone)
    if zone:
        yield tags.ZONE, zone


@question
def identity(db: Db, key: Key) -> tuple[str, ...]:
    """The identities of the proxy with this key; none where there is no such proxy."""
    proxy = world.proxy(db, key)
    return () if proxy is None else uris(key.mesh, proxy)
