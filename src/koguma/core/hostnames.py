"""Hostnames: the names under which services are called, and who has a name that several want.

A HostnameGenerator selects destinations of one kind by labels and makes a name of each. All that select a
destination give it one. A MeshExternalService with a list of matches says its own names (InternalVIP), and
takes none from generators.

A name belongs to one destination of a mesh. Whoever comes first has it: names that destinations say
themselves, then those of generators of this zone, then of others, the older generator first, then by name;
of one generator's, the older destination, then by key. Unlike in Kuma, destinations of different kinds are
compared too, since a client asks for a name and not for a kind, and who has the name is told right.

Beside these a MeshService that selects by the tag `kuma.io/service` has the name that Kuma 2.13 gives to that
tag, `<service>.mesh`, unless the mesh's `meshServices.mode` is Exclusive. All other names go before it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import services, vips, world
from koguma.core.incremental import Db, question
from koguma.core.vips import ITSELF
from koguma.core.world import Pairs, pairs
from koguma.model import labels, names, tags, template
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.template import Template, TemplateError

GENERATED: Final = "Generated"  # type of the condition, and the reason why it holds
COLLISION: Final = "Collision"
TEMPLATE_ERROR: Final = "TemplateError"
INVALID: Final = "InvalidHostname"

_KIND: Final = "HostnameGenerator"
_SELECTORS: Final = {
    "meshService": "MeshService",
    "meshExternalService": "MeshExternalService",
    "meshMultiZoneService": "MeshMultiZoneService",
}
_OWN_RANK: Final = (0, "", "")
_LEGACY_RANK: Final = 3  # after generators of this zone (1) and of others (2)
_LEGACY_DOMAIN: Final = "mesh"
_WITHOUT_LEGACY: Final = "Exclusive"

Rank = tuple[int, str, str]


class Generator(msgspec.Struct, frozen=True):
    """A HostnameGenerator as far as names go; `problem` is set where its template cannot be read."""

    core_name: str
    rank: Rank  # the lower one has a name that two give
    selects: str
    labels: Pairs
    template: Template | None
    problem: str = ""


class HostnameClaim(msgspec.Struct, frozen=True):
    """A name that a destination is to have; `reason` and `message` say why there is none.

    `generator` is empty for a name that the destination says itself; `slot` is then the word that it uses,
    under which it has its address.
    """

    rank: Rank
    generator: str
    hostname: str = ""
    slot: str = ITSELF
    reason: str = ""
    message: str = ""
    is_legacy: bool = False  # the name of a service tag, as in Kuma 2.13


class DestinationClaims(msgspec.Struct, frozen=True):
    """The names that a destination is to have, if nobody else has them."""

    core_name: str
    since: str
    claims: tuple[HostnameClaim, ...] = ()


@question
def generators(db: Db, selects: str) -> tuple[Generator, ...]:
    """The generators for a kind of destination, first those that win."""
    found = (_generator(resource) for _, resource in world.BY_KIND.items(db, (_KIND, "")))
    return tuple(sorted((each for each in found if each and each.selects == selects), key=_rank))


def _rank(of: Generator | HostnameClaim) -> Rank:
    return of.rank


def _generator(resource: Resource) -> Generator | None:
    """None for one that a plugin extends: the plugin makes the names."""
    spec = resource.spec
    selector = spec.get("selector") or {}
    word = next((word for word in _SELECTORS if selector.get(word) is not None), None)
    if word is None or spec.get("extension"):
        return None
    is_foreign = resource.origin != "zone"
    parsed, problem = _parsed(spec.get("template") or "")
    return Generator(
        resource.core_name,
        (1 + is_foreign, resource.creation_time, resource.core_name),
        _SELECTORS[word],
        pairs(selector[word].get("matchLabels")),
        parsed,
        problem,
    )


def _parsed(text: str) -> tuple[Template | None, str]:
    try:
        return template.parse(text, template.HOSTNAME_FIELDS), ""
    except TemplateError as error:
        return None, str(error)


@question
def claims(db: Db, destination: Key) -> DestinationClaims | None:
    """The names that a destination is to have, best first; a change of its status changes nothing here."""
    resource = world.RESOURCES.get(db, destination)
    if resource is None:
        return None
    slots = vips.required_names(db, destination)
    if slots == (ITSELF,):
        found = (*_generated(db, destination, resource), *_legacy(db, destination, resource))
    else:
        found = tuple(_own(slot) for slot in slots)
    return DestinationClaims(resource.core_name, resource.creation_time, found)


def _own(slot: str) -> HostnameClaim:
    hostname = slot.lower().rstrip(".")
    return _checked(HostnameClaim(_OWN_RANK, "", hostname, slot))


def _generated(db: Db, destination: Key, resource: Resource) -> Iterator[HostnameClaim]:
    own = dict(world.labels_of(db, destination))
    for generator in generators(db, destination.kind):
        if set(generator.labels) <= own.items():
            yield _made(generator, _values(resource, own), own)


def _tagged_service(resource: Resource) -> str:
    """The value of `kuma.io/service` that a MeshService stands for; empty where it selects otherwise."""
    if resource.kind != "MeshService":
        return ""
    selected = (resource.spec.get("selector") or {}).get("dataplaneTags") or {}
    # A generated service of a namespace names its namespace beside the tag.
    return (selected.get(tags.SERVICE) or "") if selected.keys() <= {tags.SERVICE, labels.NAMESPACE} else ""


def _legacy(db: Db, destination: Key, resource: Resource) -> Iterator[HostnameClaim]:
    service = _tagged_service(resource)
    if not service or services.mode(db, destination.mesh) == _WITHOUT_LEGACY:
        return
    is_foreign = destination.zone != world.control_plane(db).zone
    rank = (_LEGACY_RANK + is_foreign, "", "")
    # Kuma has `a_b.mesh` and `a.b.mesh`; `_` is no character of host names, so only the second is one.
    hostname = f"{service.replace('_', '.').lower()}.{_LEGACY_DOMAIN}"
    yield _checked(HostnameClaim(rank, "", hostname, is_legacy=True))


@question
def has_legacy_name(db: Db, destination: Key) -> bool:
    """Whether a destination is called by the name of its service tag."""
    return any(claim.is_legacy and claim.hostname for claim in of(db, destination))


def _values(resource: Resource, own: Mapping[str, str]) -> dict[str, str]:
    return {
        "Name": resource.core_name,
        "DisplayName": own[labels.DISPLAY_NAME],
        "Namespace": resource.namespace,
        "Mesh": resource.mesh,
        "Zone": resource.zone,
    }


def _made(generator: Generator, values: Mapping[str, str], own: Mapping[str, str]) -> HostnameClaim:
    claim = HostnameClaim(generator.rank, generator.core_name)
    if generator.template is None:
        return _refused(claim, TEMPLATE_ERROR, generator.problem)
    try:
        hostname = template.render(generator.template, values, own)
    except TemplateError as error:
        return _refused(claim, TEMPLATE_ERROR, str(error))
    return _checked(msgspec.structs.replace(claim, hostname=hostname))


def _checked(claim: HostnameClaim) -> HostnameClaim:
    """The claim, unless its name cannot be one."""
    parts = claim.hostname.split(".")
    if names.is_subdomain(claim.hostname) and max(map(len, parts)) <= names.LABEL_LENGTH_MAX:
        return claim
    words = "is no host name: at most 253 of a-z, 0-9, '-' and '.', of which at most 63 between two dots"
    return _refused(claim, INVALID, f'"{claim.hostname}" {words}')


def _refused(claim: HostnameClaim, reason: str, message: str) -> HostnameClaim:
    return msgspec.structs.replace(claim, hostname="", reason=reason, message=message)


@question
def of_mesh(db: Db, mesh: str) -> Mapping[Key, tuple[HostnameClaim, ...]]:
    """What became of every claim in a mesh, by destination; one that came too late says who has the name."""
    asked = {key: claims(db, key) for kind in world.DESTINATION_KINDS for key in _keys(db, kind, mesh)}
    known = {key: found for key, found in asked.items() if found is not None and found.claims}
    entries = [
        (claim.rank, found.since, key, claim) for key, found in known.items() for claim in found.claims
    ]
    holders: dict[str, Key] = {}
    settled: dict[Key, list[HostnameClaim]] = {key: [] for key in known}
    for _, _, key, claim in sorted(entries, key=lambda entry: entry[:3]):
        holder = holders.setdefault(claim.hostname, key) if claim.hostname else key
        settled[key].append(claim if holder == key else _late(claim, holder, known[holder]))
    return {key: tuple(found) for key, found in settled.items()}


def _keys(db: Db, kind: str, mesh: str) -> tuple[Key, ...]:
    return world.BY_KIND.keys(db, (kind, mesh))


def _late(claim: HostnameClaim, holder: Key, its: DestinationClaims) -> HostnameClaim:
    return _refused(claim, COLLISION, f"Hostname collision with {holder.kind}: {its.core_name}")


@question
def of(db: Db, destination: Key) -> tuple[HostnameClaim, ...]:
    """What became of the claims of a destination."""
    return of_mesh(db, destination.mesh).get(destination, ())


@question
def records(db: Db, destinations: tuple[Key, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What DNS answers so that these destinations are reached: names with their addresses, sorted."""
    found: dict[str, dict[str, None]] = {}
    for key in destinations:
        addresses = vips.named(db, key)
        for claim in of(db, key):
            reached = [address for name, address in addresses if name == claim.slot]
            if claim.hostname and reached:
                found.setdefault(claim.hostname, {}).update(dict.fromkeys(reached))
    return tuple((name, tuple(sorted(reached))) for name, reached in sorted(found.items()))


def reported(claims: tuple[HostnameClaim, ...]) -> dict[str, Json]:
    """What a status says of names: those that were given, and what became of each generator."""
    made = sorted((claim for claim in claims if claim.generator), key=lambda claim: claim.generator)
    return {
        "addresses": [_address(claim) for claim in made if claim.hostname],
        "hostnameGenerators": [_report(claim) for claim in made],
    }


def _address(claim: HostnameClaim) -> Json:
    return {
        "hostname": claim.hostname,
        "origin": _KIND,
        "hostnameGeneratorRef": {"coreName": claim.generator},
    }


def _report(claim: HostnameClaim) -> Json:
    condition = {
        "type": GENERATED,
        "status": "True" if claim.hostname else "False",
        "reason": GENERATED if claim.hostname else claim.reason,
        "message": claim.message,
    }
    return {"hostnameGeneratorRef": {"coreName": claim.generator}, "conditions": [condition]}
