"""Hostnames: the host names of services, and which service gets a name that several claim.

A HostnameGenerator selects destinations of one kind by labels and renders a name for each; every generator
that selects a destination gives it a name. A MeshExternalService with a list of matches has the names in its
own spec (InternalVIP), and none from generators.

A name belongs to one destination of a mesh. Claims are ranked: names in a destination's own spec, then those
of generators of this zone, then of others, the older generator first, then by name; among the claims of one
generator, the older destination, then by key. Unlike in Kuma, destinations of different kinds are compared
too, since a client resolves a name and not a kind; and a collision reports the destination that holds it.

Besides, a MeshService that selects by the tag `kuma.io/service` has the legacy name that Kuma 2.13 gives to
that tag, `<service>.mesh`, unless the mesh's `meshServices.mode` is Exclusive. All other claims rank before
it.
"""

from collections.abc import Iterator, Mapping, Sequence
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
AVAILABLE: Final = "HostnamesAvailable"  # type of the condition about names in a spec
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
    """A HostnameGenerator; `problem` is set where its template cannot be parsed."""

    core_name: str
    rank: Rank  # of two generators that give one name, the lower rank wins
    selects: str
    labels: Pairs
    template: Template | None
    problem: str = ""


class HostnameClaim(msgspec.Struct, frozen=True):
    """A host name that a destination claims; where it does not get it, `reason` and `message` say why.

    `generator` is empty for a name in the destination's own spec; `slot` is then the name as written there,
    under which the destination has its virtual address.
    """

    rank: Rank
    generator: str
    hostname: str = ""
    slot: str = ITSELF
    reason: str = ""
    message: str = ""
    is_legacy: bool = False  # the name of a service tag, as in Kuma 2.13
    holder: Key | None = None  # who has the name, where it is another destination
    lost: str = ""  # the name that the holder has


class DestinationClaims(msgspec.Struct, frozen=True):
    """The host names that a destination claims, before collisions are resolved."""

    core_name: str
    since: str
    claims: tuple[HostnameClaim, ...] = ()


@question
def generators(db: Db, selects: str) -> tuple[Generator, ...]:
    """The generators for a kind of destination, by rank."""
    parsed = (_generator(resource) for _, resource in world.BY_KIND.items(db, (_KIND, "")))
    return tuple(sorted((each for each in parsed if each and each.selects == selects), key=_rank))


def _rank(ranked: Generator | HostnameClaim) -> Rank:
    return ranked.rank


def _generator(resource: Resource) -> Generator | None:
    """None for one with an `extension`: the extension renders the names."""
    spec = resource.spec
    selector = spec.get("selector") or {}
    field = next((field for field in _SELECTORS if selector.get(field) is not None), None)
    if field is None or spec.get("extension"):
        return None
    is_foreign = resource.origin != "zone"
    parsed, problem = _parsed(spec.get("template") or "")
    return Generator(
        resource.core_name,
        (1 + is_foreign, resource.creation_time, resource.core_name),
        _SELECTORS[field],
        pairs(selector[field].get("matchLabels")),
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
    """The host names that a destination claims, by rank; they do not depend on its status."""
    resource = world.RESOURCES.get(db, destination)
    if resource is None:
        return None
    slots = vips.required_names(db, destination)
    if slots == (ITSELF,):
        claimed = (*_generated(db, destination, resource), *_legacy(db, destination, resource))
    else:
        claimed = tuple(_own(slot) for slot in slots)
    return DestinationClaims(resource.core_name, resource.creation_time, claimed)


def _own(slot: str) -> HostnameClaim:
    hostname = slot.lower().rstrip(".")
    return _checked(HostnameClaim(_OWN_RANK, "", hostname, slot))


def _generated(db: Db, destination: Key, resource: Resource) -> Iterator[HostnameClaim]:
    own_labels = dict(world.labels_of(db, destination))
    for generator in generators(db, destination.kind):
        if set(generator.labels) <= own_labels.items():
            yield _rendered(generator, _values(resource, own_labels), own_labels)


def _tagged_service(resource: Resource) -> str:
    """The value of `kuma.io/service` that a MeshService selects by; empty where it selects otherwise."""
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
    # Kuma answers for `a_b.mesh` and `a.b.mesh`; `_` is not legal in host names, so only the second is used.
    hostname = f"{service.replace('_', '.').lower()}.{_LEGACY_DOMAIN}"
    yield _checked(HostnameClaim(rank, "", hostname, is_legacy=True))


@question
def has_legacy_name(db: Db, destination: Key) -> bool:
    """Whether a destination has the legacy name of its service tag."""
    return any(claim.is_legacy and claim.hostname for claim in of(db, destination))


def _values(resource: Resource, own: Mapping[str, str]) -> dict[str, str]:
    return {
        "Name": resource.core_name,
        "DisplayName": own[labels.DISPLAY_NAME],
        "Namespace": resource.namespace,
        "Mesh": resource.mesh,
        "Zone": resource.zone,
    }


def _rendered(generator: Generator, values: Mapping[str, str], own: Mapping[str, str]) -> HostnameClaim:
    claim = HostnameClaim(generator.rank, generator.core_name)
    if generator.template is None:
        return _refused(claim, TEMPLATE_ERROR, generator.problem)
    try:
        hostname = template.render(generator.template, values, own)
    except TemplateError as error:
        return _refused(claim, TEMPLATE_ERROR, str(error))
    return _checked(msgspec.structs.replace(claim, hostname=hostname))


def _checked(claim: HostnameClaim) -> HostnameClaim:
    """The claim; refused where its name is no legal host name."""
    parts = claim.hostname.split(".")
    if names.is_subdomain(claim.hostname) and max(map(len, parts)) <= names.LABEL_LENGTH_MAX:
        return claim
    message = "is no host name: at most 253 of a-z, 0-9, '-' and '.', of which at most 63 between two dots"
    return _refused(claim, INVALID, f'"{claim.hostname}" {message}')


def _refused(claim: HostnameClaim, reason: str, message: str) -> HostnameClaim:
    return msgspec.structs.replace(claim, hostname="", reason=reason, message=message)


@question
def of_mesh(db: Db, mesh: str) -> Mapping[Key, tuple[HostnameClaim, ...]]:
    """All claims of a mesh after collisions are resolved, by destination; a loser names the holder."""
    by_destination = {
        key: claims(db, key) for kind in world.DESTINATION_KINDS for key in _keys(db, kind, mesh)
    }
    known = {
        key: destination_claims
        for key, destination_claims in by_destination.items()
        if destination_claims is not None and destination_claims.claims
    }
    entries = [
        (claim.rank, destination_claims.since, key, claim)
        for key, destination_claims in known.items()
        for claim in destination_claims.claims
    ]
    holders: dict[str, Key] = {}
    settled: dict[Key, list[HostnameClaim]] = {key: [] for key in known}
    for _, _, key, claim in sorted(entries, key=lambda entry: entry[:3]):
        holder = holders.setdefault(claim.hostname, key) if claim.hostname else key
        settled[key].append(claim if holder == key else _collided(claim, holder, known[holder]))
    return {key: tuple(destination_claims) for key, destination_claims in settled.items()}


def _keys(db: Db, kind: str, mesh: str) -> tuple[Key, ...]:
    return world.BY_KIND.keys(db, (kind, mesh))


def _collided(claim: HostnameClaim, holder: Key, holder_claims: DestinationClaims) -> HostnameClaim:
    message = f"Hostname collision with {holder.kind}: {holder_claims.core_name}"
    refused = _refused(claim, COLLISION, message)
    return msgspec.structs.replace(refused, holder=holder, lost=claim.hostname)


class HostnameCollision(msgspec.Struct, frozen=True):
    """A name that two destinations claim; a generator is empty where the name is in a spec."""

    hostname: str
    holder: Key
    holder_generator: str
    loser: Key
    generator: str
    slot: str  # of the loser


@question
def collisions(db: Db, mesh: str) -> Mapping[Key, tuple[HostnameCollision, ...]]:
    """The collisions of a mesh, by each of the two destinations.

    The legacy name of a service tag is not asked for by anybody, so its loss is none.
    """
    by_key: dict[Key, list[HostnameCollision]] = {}
    all_claims = of_mesh(db, mesh)
    for loser, settled in all_claims.items():
        for claim in settled:
            if claim.holder is not None and not claim.is_legacy:
                held = next(each for each in all_claims[claim.holder] if each.hostname == claim.lost)
                collision = HostnameCollision(
                    claim.lost, claim.holder, held.generator, loser, claim.generator, claim.slot
                )
                by_key.setdefault(loser, []).append(collision)
                by_key.setdefault(claim.holder, []).append(collision)
    return {key: tuple(found) for key, found in by_key.items()}


@question
def of(db: Db, destination: Key) -> tuple[HostnameClaim, ...]:
    """The claims of a destination after collisions are resolved."""
    return of_mesh(db, destination.mesh).get(destination, ())


@question
def records(
    db: Db,
    destinations: tuple[Key, ...],
    has_ipv6: bool = True,  # noqa: FBT001, FBT002 - arguments of questions are positional
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The DNS records of these destinations: names with their virtual addresses, sorted."""
    by_name: dict[str, dict[str, None]] = {}
    for key in destinations:
        addresses = vips.named(db, key)
        for claim in of(db, key):
            of_claim = [address for name, address in addresses if name == claim.slot]
            claim_addresses = vips.of_families(of_claim, has_ipv6=has_ipv6)
            if claim.hostname and claim_addresses:
                by_name.setdefault(claim.hostname, {}).update(dict.fromkeys(claim_addresses))
    return tuple((name, tuple(sorted(name_addresses))) for name, name_addresses in sorted(by_name.items()))


def reported(claims: tuple[HostnameClaim, ...]) -> dict[str, Json]:
    """The part of a status about host names: those of generators, and conditions about all of them."""
    generated = sorted((claim for claim in claims if claim.generator), key=lambda claim: claim.generator)
    refused = [c for c in claims if not c.generator and not c.is_legacy and not c.hostname]
    return {
        "addresses": [_address(claim) for claim in generated if claim.hostname],
        "hostnameGenerators": [_report(claim) for claim in generated],
        "conditions": [_unavailable(refused)] if refused else [],
    }


def _unavailable(refused: Sequence[HostnameClaim]) -> Json:
    """The condition of a destination with names in its spec that DNS does not answer with it."""
    return {
        "type": AVAILABLE,
        "status": "False",
        "reason": refused[0].reason,
        "message": "; ".join(f'"{claim.slot}": {claim.message}' for claim in refused),
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
