"""Parties: the proxies and services that users mean: by name, by KIND/NAME, by tag or by KRI."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from koguma.core import meta, world
from koguma.core.build import endpoints, network
from koguma.core.gateways import GATEWAY, listeners
from koguma.core.incremental import Db
from koguma.core.world import DESTINATION_KINDS, Port
from koguma.model import kri, tags
from koguma.model.errors import BadRequest, NotFound
from koguma.model.nearest import nearest
from koguma.model.resource import Key

OUTSIDE: Final = "outside"  # a caller that has no proxy of the mesh, in front of a gateway
_PROXY: Final = "Dataplane"
KINDS: Final = frozenset((*DESTINATION_KINDS, GATEWAY, _PROXY))
_SERVICE_TAGS: Final = (tags.SERVICE, "kuma.io/workload")


class CalledPort(msgspec.Struct, frozen=True):
    """A port that is called; of a service, or of a gateway."""

    destination: Key
    section: str
    number: int
    protocol: str
    proxy: Key | None = None  # only what reaches this proxy is asked about


def callers(db: Db, mesh: str, word: str) -> tuple[Key, ...]:
    """The proxies that a word means as a caller, in order; NotFound where it means none."""
    kind, name = kind_and_name(db, word)
    found: tuple[Key, ...] = ()
    if kind in ("", *DESTINATION_KINDS):
        found = tuple(sorted(set(_of_services(db, mesh, word, name))))
    if not found and not kind:
        found = tuple(key for tag in _SERVICE_TAGS for key in network.BY_TAG.keys(db, (mesh, tag, name)))
    if not found and kind in ("", _PROXY):
        found = tuple(_meant(word, _named_proxies(db, mesh, name)))
    if not found and world.BY_NAME.keys(db, ("MeshService", mesh, name)):
        raise NotFound(f'MeshService "{name}" in mesh "{mesh}" selects no proxy, so nobody calls as it')
    if not found:
        raise NotFound(_nobody(db, mesh, word, "no proxy or service"))
    return found


def _meant(word: str, keys: Iterable[Key]) -> Iterator[Key]:
    """Of objects of one name those that a word means: a KRI says also which mesh, zone and namespace."""
    if not kri.is_kri(word):
        return iter(keys)
    parsed = kri.parse(word)
    place = (parsed.mesh, parsed.zone, parsed.namespace)
    return (key for key in keys if (key.mesh, key.zone, key.namespace) == place)


def _of_services(db: Db, mesh: str, word: str, name: str) -> Iterator[Key]:
    for service in _meant(word, world.BY_NAME.keys(db, ("MeshService", mesh, name))):
        yield from (key for key, _ in endpoints.selected(db, service))


def _named_proxies(db: Db, mesh: str, name: str) -> Iterator[Key]:
    for key in world.BY_KIND.keys(db, (_PROXY, mesh)):
        proxy = world.proxy(db, key)
        if proxy is not None and name in (key.name, proxy.core_name):
            yield key


def exact(db: Db, mesh: str, word: str) -> str:
    """The KRI of an object that a word names by its core name here, which is another one elsewhere."""
    kind, name = kind_and_name(db, word)
    if kri.is_kri(word):
        return word
    for each in (kind,) if kind else (*DESTINATION_KINDS, GATEWAY, _PROXY):
        for key in world.BY_KIND.keys(db, (each, mesh)):
            if key.name != name and _core_name(db, key) == name:
                return meta.kri(db, key) or word
    return word


def called(
    db: Db,
    mesh: str,
    word: str,
    port: str,
    zone: str,
    visible: frozenset[str],
    reaches: Callable[[Key], bool] = lambda _destination: True,
) -> tuple[CalledPort, ...]:
    """The ports that words mean as what is called from a zone: one, or all where no port is named.

    Of several kinds of service with one name it is that which the callers reach.
    """
    kind, name = kind_and_name(db, word)
    kinds = [each for each in ((kind,) if kind else (*DESTINATION_KINDS, GATEWAY)) if each in visible]
    found = [
        keys[0]
        for each in kinds
        if each != _PROXY and (keys := tuple(_meant(word, _preferred(db, mesh, each, name, zone))))
    ]
    if found:
        chosen = next(filter(reaches, found), found[0]) if len(found) > 1 else found[0]
        return _ports(db, chosen, word, port or _section(word))
    has_proxies = kind in ("", _PROXY) and _PROXY in visible
    proxies = tuple(_meant(word, _named_proxies(db, mesh, name))) if has_proxies else ()
    if not proxies:
        raise NotFound(_nobody(db, mesh, word, "no service, gateway or proxy"))
    return _ports_of_proxy(db, proxies[0], word, port)


def _section(word: str) -> str:
    """The port that a KRI names, if any."""
    return kri.parse(word).section if kri.is_kri(word) else ""


def _preferred(db: Db, mesh: str, kind: str, name: str, zone: str) -> Sequence[Key]:
    """The objects of a name: one of the caller's own zone first."""
    keys = world.BY_NAME.keys(db, (kind, mesh, name))
    by_core_name = [key for key in world.BY_KIND.keys(db, (kind, mesh)) if _core_name(db, key) == name]
    return sorted({*keys, *by_core_name}, key=lambda key: (key.zone != zone, bool(key.zone), key))


def _core_name(db: Db, key: Key) -> str:
    resource = world.RESOURCES.get(db, key)
    return resource.core_name if resource else ""


def _ports(db: Db, key: Key, word: str, port: str) -> tuple[CalledPort, ...]:
    if key.kind == GATEWAY:
        numbers = {each.port: each.protocol for each in listeners(db, key)}
        known = [Port(str(number), number, protocol.lower()) for number, protocol in sorted(numbers.items())]
    else:
        destination = world.destination(db, key)
        known = list(destination.ports) if destination else []
    chosen = [each for each in known if port in ("", each.section, each.name, str(each.number))]
    if not chosen:
        has = ", ".join(_shown(each) for each in known) or "none"
        raise BadRequest(f'"{word}" has no port "{port}"; it has {has}' if port else f'"{word}" has no port')
    return tuple(CalledPort(key, each.section, each.number, each.protocol) for each in chosen)


def _shown(port: Port) -> str:
    return str(port.number) if port.section == str(port.number) else f"{port.section} ({port.number})"


def _ports_of_proxy(db: Db, proxy: Key, word: str, port: str) -> tuple[CalledPort, ...]:
    """The ports of the first service that a proxy serves; only what reaches this proxy is asked about."""
    for service in world.BY_KIND.keys(db, ("MeshService", proxy.mesh)):
        if any(key == proxy for key, _ in endpoints.selected(db, service)):
            ports = _ports(db, service, word, port)
            return tuple(msgspec.structs.replace(each, proxy=proxy) for each in ports)
    raise BadRequest(f'no MeshService has the proxy "{word}" as an endpoint; so nobody can call it by a name')


def kind_and_name(db: Db, word: str) -> tuple[str, str]:
    """The kind that a word names, if any, and the name."""
    if kri.is_kri(word):
        parsed = kri.parse(word)
        for name, kind in world.KINDS.items(db):
            if kind.short == parsed.short:
                return name, parsed.name
    prefix, slash, name = word.partition("/")
    if not slash:
        return "", word
    for _, kind in world.KINDS.items(db):
        if prefix.lower() in (kind.name.lower(), kind.path, kind.short, kind.path.removesuffix("s")):
            return kind.name, name
    raise BadRequest(f'"{prefix}" in "{word}" is no kind; write a name, KIND/NAME or a KRI')


def _nobody(db: Db, mesh: str, word: str, what: str) -> str:
    # Names of these kinds alone: who may not list them may not ask at all.
    known = {key.name for key in world.BY_KIND.keys(db, ("MeshService", mesh))}
    known |= {key.name for key in world.BY_KIND.keys(db, (_PROXY, mesh))}
    near = nearest(word, sorted(known))
    hint = f'; did you mean "{near}"?' if near else ""
    return f'mesh "{mesh}" has {what} "{word}"{hint}'
