"""Statuses of GatewayClasses, Gateways and ListenerSets: what this control plane reports on them.

`plan` gives the objects whose status is to change. Conditions are merged by type: those of others stay.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.gateway_api import (
    attachment,
    conditions,
    gateways,
    listeners,
    objects,
    parents,
    routes,
)
from koguma.core.gateway_api.conditions import FALSE, TRUE, StatusCondition
from koguma.core.gateway_api.listeners import GatewayApiListener, Reason
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.model import derived, hostname, tags
from koguma.model.gateway_api.features import SUPPORTED
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

KINDS: Final = (objects.GATEWAY_CLASS, objects.GATEWAY, objects.LISTENER_SET)
_ADDRESSES_MAX: Final = 16
_OVERLAPPING: Final = "OverlappingTLSConfig"
_NOT_VALID: Final = "ListenersNotValid"
_OURS: Final = ("Accepted", "Programmed", "ResolvedRefs", "Conflicted", "SupportedVersion", _OVERLAPPING)


def plan(db: Db, now: str, connected: Collection[Key] | None = None) -> Iterator[Resource]:
    """The objects with statuses that are to be written over the revisions that they carry.

    `connected` are the proxies that are connected to any control plane; None: all that are stored count.
    """
    for kind in KINDS:
        for _, resource in world.BY_KIND_EVERYWHERE.items(db, kind):
            status = _desired(db, resource, now, connected)
            if status is not None and status != resource.status:
                yield msgspec.structs.replace(resource, status=status)


def _desired(db: Db, resource: Resource, now: str, connected: Collection[Key] | None) -> Json:
    """The status of an object; None where it is not ours to report on."""
    if resource.kind == objects.GATEWAY_CLASS:
        return _of_class(resource, now)
    gateway = attachment.gateway_key(db, resource.key)
    parent = world.RESOURCES.get(db, gateway) if gateway else None
    if parent is None or not attachment.is_ours(db, parent):
        return None
    report = _Report(db, parent, now, connected)
    return report.of_gateway() if resource.key == parent.key else report.of_set(resource)


def loses_proxies(before: Json, after: Json) -> bool:
    """Whether a status says of fewer proxies than before that they serve a Gateway, or of none any more."""
    return not _served(before) <= _served(after)


def _served(status: Json) -> set[str]:
    """The addresses of a Gateway, or that a ListenerSet is programmed."""
    fields = objects.fields(status)
    addresses = {objects.text(each.get("value")) for _, each in objects.items(fields.get("addresses"))}
    conditions = (each for _, each in objects.items(fields.get("conditions")))
    is_programmed = any(
        each.get("type") == "Programmed" and each.get("status") == TRUE for each in conditions
    )
    return addresses | ({"Programmed"} if is_programmed else set())


def _of_class(resource: Resource, now: str) -> Json:
    spec, before = objects.fields(resource.spec), objects.fields(resource.status)
    if spec.get("controllerName") != objects.CONTROLLER:
        return None
    parameters = objects.fields(spec.get("parametersRef"))
    accepted = StatusCondition("Accepted", TRUE, "Accepted", "Gateways of this class are served.")
    if parameters:
        what = f"{objects.text(parameters.get('kind'))} {objects.text(parameters.get('name'))}"
        message = f"spec.parametersRef: {what}: this control plane takes no parameters"
        accepted = StatusCondition("Accepted", FALSE, gateways.INVALID_PARAMETERS, message)
    version = StatusCondition(
        "SupportedVersion", TRUE, "SupportedVersion", "The kinds are those of version 1.6."
    )
    return {
        **before,
        "conditions": _merged(before.get("conditions"), (accepted, version), resource.generation, now),
        "supportedFeatures": [{"name": name} for name in SUPPORTED],
    }


def _merged(before: Json, wanted: Iterable[StatusCondition], generation: int, now: str) -> list[Json]:
    """Our conditions, beside those of types that are others'."""
    others = [each for _, each in objects.items(before) if each.get("type") not in _OURS]
    return [*conditions.merged(before, wanted, generation, now), *others]


def _served_by(key: Key, resource: Resource) -> list[tuple[str, str]]:
    if key.kind != "Dataplane":
        return []
    gateway = objects.fields(objects.fields(objects.fields(resource.spec).get("networking")).get("gateway"))
    service = objects.fields(gateway.get("tags")).get(tags.SERVICE)
    return [(key.mesh, service)] if gateway.get("type") == "BUILTIN" and service else []


_PROXIES = Index(world.RESOURCES, _served_by)


@question
def attached(db: Db) -> Mapping[tuple[Key, str], int]:
    """How many routes each listener has accepted, by MeshGateway and section."""
    counts: Counter[tuple[Key, str]] = Counter()
    for kind in objects.ROUTES:
        for route in world.BY_KIND_EVERYWHERE.keys(db, kind):
            taken = {
                (parent.target, listener.section)
                for parent in parents.of(db, route)
                if not parent.reason and routes.converted(db, route, parent.mesh).rules
                for listener in parent.listeners
            }
            counts.update(taken)
    return dict(counts)


class _Report:
    """What there is to say of one Gateway and its ListenerSets."""

    def __init__(self, db: Db, gateway: Resource, now: str, connected: Collection[Key] | None) -> None:
        self._db = db
        self._gateway = gateway
        self._now = now
        self._mesh = objects.mesh_of(db, gateway)
        self._listeners = listeners.of(db, gateway.key)
        self._refusal = gateways.refusal(gateway)
        service = gateways.service_of(gateway.key)
        stored = _PROXIES.items(db, (self._mesh, service))
        proxies = [each for key, each in stored if connected is None or key in connected]
        self._addresses = sorted({address for each in proxies if (address := _address(each))})

    def of_gateway(self) -> Json:
        """The status of the Gateway."""
        before = objects.fields(self._gateway.status)
        accepted, own = self._accepted(), self._own(self._gateway.key)
        broken = [each.name for each in own if each.unresolved]
        resolved = StatusCondition("ResolvedRefs", TRUE, "ResolvedRefs", "All references lead somewhere.")
        if broken:
            message = f"References of these listeners lead nowhere: {', '.join(broken)}."
            resolved = StatusCondition("ResolvedRefs", FALSE, "ListenersNotResolved", message)
        wanted = (accepted, self._programmed(accepted), resolved)
        generation = self._gateway.generation
        n_sets = sum(self._is_set_accepted(each) for each in listeners.sets(self._db, self._gateway.key))
        addresses = [{"type": "IPAddress", "value": each} for each in self._addresses[:_ADDRESSES_MAX]]
        kept = {name: value for name, value in before.items() if name != "addresses"}
        return {
            **kept,
            **({"addresses": addresses} if addresses else {}),
            "conditions": _merged(before.get("conditions"), wanted, generation, self._now),
            "listeners": self._listener_statuses(before, own, generation),
            "attachedListenerSets": n_sets,
        }

    def of_set(self, resource: Resource) -> Json:
        """The status of a ListenerSet of the Gateway."""
        before, own = objects.fields(resource.status), self._own(resource.key)
        gateway = self._accepted()
        programmed = self._programmed(gateway)
        valid = [each for each in own if each.conflict is None and each.refused is None]
        if not listeners.is_allowed(self._db, self._gateway.key, resource.key):
            accepted = StatusCondition(
                "Accepted", FALSE, "NotAllowed", "The Gateway does not allow this namespace."
            )
        elif gateway.status == FALSE and gateway.reason != _NOT_VALID:
            accepted = StatusCondition("Accepted", FALSE, "ParentNotAccepted", "The Gateway is not accepted.")
        elif not valid:
            accepted = StatusCondition("Accepted", FALSE, _NOT_VALID, "No listener of the set can be served.")
        elif len(valid) < len(own):
            accepted = StatusCondition(
                "Accepted", TRUE, _NOT_VALID, "Some listeners of the set cannot be served."
            )
        else:
            accepted = StatusCondition("Accepted", TRUE, "Accepted", "Its listeners are part of the Gateway.")
        if accepted.status == FALSE:
            done = StatusCondition("Programmed", FALSE, accepted.reason, accepted.message)
        elif not self._addresses:
            done = StatusCondition("Programmed", FALSE, "ParentNotProgrammed", programmed.message)
        else:
            done = StatusCondition("Programmed", TRUE, "Programmed", "Proxies serve it.")
        return {
            **before,
            "conditions": _merged(before.get("conditions"), (accepted, done), resource.generation, self._now),
            "listeners": self._listener_statuses(before, own, resource.generation),
        }

    def _own(self, owner: Key) -> list[GatewayApiListener]:
        return [each for each in self._listeners if each.owner == owner]

    def _is_set_accepted(self, listener_set: Key) -> bool:
        own = self._own(listener_set)
        return self._refusal is None and any(not each.conflict and not each.refused for each in own)

    def _accepted(self) -> StatusCondition:
        if self._refusal is not None:
            return StatusCondition("Accepted", FALSE, *self._refusal)
        own = self._own(self._gateway.key)
        bad = [each.name for each in own if each.conflict or each.refused]
        if not bad:
            return StatusCondition("Accepted", TRUE, "Accepted", "The Gateway can be served.")
        message = f"These listeners cannot be served: {', '.join(bad)}; their conditions say why."
        return StatusCondition("Accepted", TRUE if len(bad) < len(own) else FALSE, _NOT_VALID, message)

    def _programmed(self, accepted: StatusCondition) -> StatusCondition:
        if accepted.status == FALSE:
            return StatusCondition("Programmed", FALSE, gateways.INVALID, accepted.message)
        if not any(each.is_served for each in self._listeners):
            return StatusCondition("Programmed", FALSE, gateways.INVALID, "No listener can be served.")
        asked = [
            value
            for _, each in objects.items(objects.fields(self._gateway.spec).get("addresses"))
            if (value := objects.text(each.get("value")))
        ]
        missing = [value for value in asked if value not in self._addresses]
        if not self._addresses:
            run = f"koguma dp run --gateway --mesh {self._mesh} --name {self._gateway.name}-1"
            service = gateways.service_of(self._gateway.key)
            message = f"No proxy serves it; start one: {run} --tag {tags.SERVICE}={service}"
            return StatusCondition("Programmed", FALSE, "NoResources", message)
        if missing:
            message = f"No proxy listens on {', '.join(missing)}."
            return StatusCondition("Programmed", FALSE, "AddressNotUsable", message)
        return StatusCondition("Programmed", TRUE, "Programmed", "Proxies serve it.")

    def _listener_statuses(
        self, before: Mapping[str, Json], own: Iterable[GatewayApiListener], generation: int
    ) -> list[Json]:
        known = {objects.text(each.get("name")): each for _, each in objects.items(before.get("listeners"))}
        target = derived.key("MeshGateway", self._mesh, world.control_plane(self._db).zone, self._gateway.key)
        counts = attached(self._db)
        return [
            {
                "name": each.name,
                "supportedKinds": [
                    {"group": objects.GROUP, "kind": objects.word(kind)} for kind in each.kinds
                ],
                "attachedRoutes": counts.get((target, each.section), 0),
                "conditions": _merged(
                    objects.fields(known.get(each.name)).get("conditions"),
                    self._conditions(each),
                    generation,
                    self._now,
                ),
            }
            for each in own
        ]

    def _conditions(self, listener: GatewayApiListener) -> tuple[StatusCondition, ...]:
        problem = listener.refused or listener.conflict
        accepted = (
            StatusCondition("Accepted", FALSE, *problem)
            if problem
            else StatusCondition("Accepted", TRUE, "Accepted", "The listener can be served.")
        )
        conflicted = (
            StatusCondition("Conflicted", TRUE, *listener.conflict)
            if listener.conflict
            else StatusCondition("Conflicted", FALSE, "NoConflicts", "No other listener is in its way.")
        )
        resolved = (
            StatusCondition("ResolvedRefs", FALSE, *listener.unresolved)
            if listener.unresolved
            else StatusCondition("ResolvedRefs", TRUE, "ResolvedRefs", "All references lead somewhere.")
        )
        return (
            accepted,
            conflicted,
            resolved,
            self._listener_programmed(listener),
            *self._overlaps(listener),
        )

    def _listener_programmed(self, listener: GatewayApiListener) -> StatusCondition:
        if self._refusal is not None or not listener.is_served:
            why: Reason | None = self._refusal or listener.refused or listener.conflict or listener.unresolved
            return StatusCondition("Programmed", FALSE, gateways.INVALID, why.message if why else "")
        if not self._addresses:
            return StatusCondition("Programmed", FALSE, "Pending", "No proxy serves the Gateway yet.")
        return StatusCondition("Programmed", TRUE, "Programmed", "Proxies serve it.")

    def _overlaps(self, listener: GatewayApiListener) -> Iterator[StatusCondition]:
        if listener.protocol != "HTTPS":
            return
        others = [
            each.name
            for each in self._listeners
            if each is not listener
            and (each.port, each.protocol) == (listener.port, listener.protocol)
            and hostname.matches(each.hostname, listener.hostname)
        ]
        if others:
            message = f"Connections to {', '.join(others)} may be used for its host name too."
            yield StatusCondition(_OVERLAPPING, TRUE, "OverlappingHostnames", message)


def _address(proxy: Resource) -> str:
    networking = objects.fields(objects.fields(proxy.spec).get("networking"))
    return objects.text(networking.get("advertisedAddress")) or objects.text(networking.get("address"))
