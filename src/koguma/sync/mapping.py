"""Mapping: which stored objects travel between Global and zones, and what they are on the other side.

A key stays the same everywhere: it names the zone in which an object was written. What changes is the core
name, which gets a hash so that equal names of several zones and namespaces can be stored side by side, the
label that says where an object came from, and, towards zones, the status, which each zone computes itself.

The content of an object is what both sides store alike. Its hash is computed from what is stored, on either
side, so nobody has to remember what was received.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from koguma.core.build import network, zone_ingress
from koguma.core.role import PolicyRole
from koguma.identity import signing_keys
from koguma.identity.claims import ZONE as ZONE_TOKENS
from koguma.model import labels, names
from koguma.model.kind import Kind
from koguma.model.resource import NO_META, Resource
from koguma.model.schema import Json

GLOBAL: Final = "global"
ZONE: Final = "zone"
_DISABLED: Final = "disabled"

# Global keeps these for itself: who has one of the keys could be any user.
_GLOBAL_ONLY: Final = re.compile(
    r"(user|service-account)-token-(signing-(public-)?key|revocations)(-.*)?"
    r"|admin-user-token|envoy-admin-ca|inter-cp-ca"
)
_KEPT_CONFIG: Final = "kuma-cluster-id"  # the only Config that zones get

_encode = msgspec.json.Encoder(order="deterministic").encode


class Travelling(msgspec.Struct, frozen=True):
    """An object as the other side stores it; `only_to` names the zone that alone gets it, if there is one."""

    resource: Resource
    only_to: str = ""


def content(resource: Resource) -> bytes:
    """What both sides store alike of an object that travels."""
    return _encode(_shared(resource))


def _shared(resource: Resource) -> Resource:
    return msgspec.structs.replace(
        resource, uid="", annotations={}, modification_time="", generation=1, revision=0, meta=NO_META
    )


def upward(resource: Resource, kind: Kind, zone: str) -> Resource | None:
    """An object of a zone as Global stores it; None where it stays in the zone."""
    is_own = resource.zone == zone and resource.origin in ("", ZONE)
    if not kind.sync.zone_to_global or not is_own or _stays(resource):
        return None
    sent = {**resource.labels, **_home(resource), labels.ORIGIN: ZONE, labels.ZONE: zone}
    sent.pop(labels.GRACE_STARTED, None)
    return _renamed(_with_observed(resource), kind, sent)


def _with_observed(resource: Resource) -> Resource:
    """A MeshService with what its zone knows of its proxies in the spec, where Kuma has it too.

    Other zones need it to call the service, and a status does not go to them: each has one of its own.
    """
    status = resource.status or {}
    if resource.kind != "MeshService" or not status:
        return resource
    observed = {name: status[name] for name in ("identities", "state") if status.get(name)}
    written = {name: value for name, value in resource.spec.items() if name != "state"}
    return msgspec.structs.replace(resource, spec={**observed, **written})


def is_awaited(resource: Resource) -> bool:
    """Whether this is an ingress of the zone's own that others would call before it listens.

    Only its zone knows: that it is ready stands in its annotations, which do not travel.
    """
    return resource.kind == zone_ingress.KIND and network.is_starting(resource)


def downward(resource: Resource, kind: Kind, disabled: Collection[str] = ()) -> Travelling | None:
    """An object of Global, or of another zone, as zones store it; None where they do not get it."""
    if _stays(resource) or not (
        _is_of_global(resource, kind) if not resource.zone else _is_for_others(resource, kind, disabled)
    ):
        return None
    known = _verifying(resource) if kind.name == "GlobalSecret" else resource
    if known is None:
        return None
    sent = {**known.labels, **_home(known), labels.ORIGIN: GLOBAL}
    stripped = msgspec.structs.replace(known, status=None)
    return Travelling(_renamed(stripped, kind, sent), _only_zone(known, kind))


def _stays(resource: Resource) -> bool:
    return resource.labels.get(labels.KDS_SYNC) == _DISABLED


def _is_of_global(resource: Resource, kind: Kind) -> bool:
    if not kind.sync.global_to_zones or resource.origin not in ("", GLOBAL):
        return False
    if kind.name == "GlobalSecret":
        return _GLOBAL_ONLY.fullmatch(resource.name) is None
    return kind.name != "Config" or resource.name == _KEPT_CONFIG


def _verifying(secret: Resource) -> Resource | None:
    """A GlobalSecret as zones get it: of a key that signs zone tokens, only the half that verifies them."""
    private, public = ZONE_TOKENS.key_prefix(), ZONE_TOKENS.key_prefix(public=True)
    if not secret.name.startswith(private):
        return secret
    data = signing_keys.public_half(str((secret.spec or {}).get("data") or ""))
    if data is None:
        return None
    name = public + secret.name.removeprefix(private)
    return msgspec.structs.replace(secret, name=name, core_name=name, spec={"data": data})


def _is_for_others(resource: Resource, kind: Kind, disabled: Collection[str]) -> bool:
    if not kind.sync.across_zones or resource.zone in disabled:
        return False
    return kind.policy is None or resource.labels.get(labels.ROLE) == PolicyRole.PRODUCER.value


def _only_zone(resource: Resource, kind: Kind) -> str:
    """The zone to which a producer's policy of another zone limits itself."""
    if kind.policy is None or not resource.zone:
        return ""
    ref: Mapping[str, Json] = (resource.spec or {}).get("targetRef") or {}
    tags = ref.get("tags") if ref.get("kind") == "MeshSubset" else None
    return str((tags or {}).get(labels.ZONE) or "")


def _home(resource: Resource) -> dict[str, str]:
    """The labels that say where an object was written, and how its writer called it."""
    namespace = {labels.NAMESPACE: resource.namespace} if resource.namespace else {}
    zone = {labels.ZONE: resource.zone} if resource.zone else {}
    return {labels.DISPLAY_NAME: resource.name, **namespace, **zone}


def _renamed(resource: Resource, kind: Kind, sent: Mapping[str, str]) -> Resource:
    core_name = resource.core_name
    if not kind.sync.keeps_name:
        core_name = names.hashed(resource.mesh, resource.name, resource.zone, resource.namespace)
    ordered = {name: sent[name] for name in sorted(sent)}
    return msgspec.structs.replace(resource, core_name=core_name, labels=ordered)


def came_from_global(resource: Resource, kind: Kind, zone: str) -> bool:
    """Whether a zone holds this object of Global's."""
    if resource.zone == zone:
        return False
    return resource.origin == GLOBAL and (kind.sync.global_to_zones or kind.sync.across_zones)


def came_from_zone(resource: Resource, kind: Kind) -> bool:
    """Whether Global holds this object of a zone's."""
    return bool(resource.zone) and kind.sync.zone_to_global


def content_from_global(resource: Resource) -> bytes:
    """The content of an object that a zone holds of Global's: its status is the zone's own."""
    return content(msgspec.structs.replace(resource, status=None))


def received(content_: bytes) -> Resource:
    """The object in a content, without what each side notes for itself; ValueError where there is none."""
    return _shared(msgspec.json.decode(content_, type=Resource))
