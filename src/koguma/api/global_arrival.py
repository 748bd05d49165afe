"""Global arrival: the arrival page's answer on Global, put together from what zones say."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koguma.access.user import User
from koguma.application.context import Context
from koguma.fleet import lack_view, zone_arrivals
from koguma.fleet.zone_arrival import LACKING_MAX, LackingProxy, ListedMeshes, shortened
from koguma.fleet.zone_arrivals import ArrivalLooks, AskedArrival, FoundInZone, ZoneArrivals, ZoneLack
from koguma.identity import proxy_types
from koguma.model.errors import Forbidden
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import cut

_NO_MESH: Final = "/"  # no mesh has this name: who may list there may list everywhere
_TEXT_MAX: Final = 1000
_NAME_MAX: Final = 300
_KEY_MAX: Final = 1000


class GlobalArrival:
    """One request: looks at zones, and what they found as JSON."""

    def __init__(
        self, context: Context, arrivals: ZoneArrivals, user: User, may_list: Callable[[Key], bool]
    ) -> None:
        self._context = context
        self._arrivals = arrivals
        self._user = user
        self._may_list = may_list

    def looks(self, revision: int, objects: tuple[str, ...], *, counts_absent: bool) -> ArrivalLooks:
        """Looks at a revision, and at these objects (KRIs) in it."""
        return ArrivalLooks(
            self._arrivals, AskedArrival(revision, objects, self._listed(), counts_absent=counts_absent)
        )

    def _listed(self) -> ListedMeshes:
        """The proxies that the user may list."""
        meshes = [mesh.name for mesh in self._context.state.listed("Mesh")]
        listed: dict[str, tuple[str, ...] | None] = {}
        for each in proxy_types.SERVED.values():
            places = [""] if each.is_of_zone else [_NO_MESH, *meshes]
            allowed = [mesh for mesh in places if self._may_list(Key(each.kind, mesh, "", "", ""))]
            listed[each.kind] = None if _NO_MESH in allowed else tuple(allowed)
        return listed

    def shown(self, revision: int, found: Mapping[str, FoundInZone]) -> dict[str, Json]:
        """What was found, but for what no user's rights change."""
        answers = {zone: each.answer for zone, each in found.items() if each.answer is not None}
        lacking = [
            self._lack(each)
            for zone, answer in answers.items()
            for each in answer.lacking[:LACKING_MAX]
            if self._is_of(zone, each.key)
        ]
        problems = [f'zone "{zone}": {each.problem}' for zone, each in answers.items() if each.problem]
        answer: dict[str, Json] = {
            "revision": revision,
            "arrived": zone_arrivals.is_complete(found),
            "proxies": {
                "total": sum(each.n_proxies for each in answers.values()),
                "affected": sum(each.n_affected for each in answers.values()),
                "lacking": sum(each.n_lacking for each in answers.values()),
            },
            "lacking": sorted(lacking, key=lack_view.urgency)[:LACKING_MAX],
            "zones": [self._zone_lack(lack) for each in found.values() for lack in each.lacks],
            "controlPlanes": [
                f"{zone}/{cut(instance, _NAME_MAX)}"
                for zone, each in answers.items()
                for instance in each.instances[:LACKING_MAX]
            ],
        }
        return {**answer, "warning": cut("; ".join(problems), _TEXT_MAX)} if problems else answer

    def _is_of(self, zone: str, key: Key) -> bool:
        """Whether a zone may speak of a proxy, and the user may hear of it."""
        is_proxy = key.zone == zone and key.kind in proxy_types.BY_KIND and sum(map(len, key)) <= _KEY_MAX
        return is_proxy and self._may_list(key)

    def _lack(self, lacking: LackingProxy) -> Mapping[str, Json]:
        """A proxy that lacks it, by the name that Global has for it."""
        key, stored = lacking.key, self._context.state.get(lacking.key)
        name = stored.core_name if stored is not None else key.name
        kri = str(stored.kri(self._context.kinds[key.kind].short) or "") if stored is not None else ""
        lack = lack_view.lack_json(key, None, shortened(lacking.lack))
        return {
            **lack,
            "name": name,
            "kri": kri,
            "instance": cut(lacking.instance, _NAME_MAX),
            "zone": key.zone,
        }

    def _zone_lack(self, lack: ZoneLack) -> Mapping[str, Json]:
        is_hidden = lack.refused is not None and not self._may_read(lack.refused)
        text = "it has refused an object that you may not read" if is_hidden else lack.text
        return {
            "name": lack.zone,
            "reason": lack.reason,
            "since": lack_view.time_text(lack.since),
            "text": cut(text, _TEXT_MAX),
            "objects": [] if is_hidden else list(self._kris(lack.refused)),
            "isLasting": lack.is_lasting,
        }

    def _kris(self, key: Key | None) -> Iterator[str]:
        stored = self._context.state.get(key) if key is not None else None
        if stored is not None:
            yield str(stored.kri(self._context.kinds[stored.kind].short) or stored.key)

    def _may_read(self, key: Key) -> bool:
        stored, kind = self._context.state.get(key), self._context.kinds.get(key.kind)
        if stored is None or kind is None:
            return False
        try:
            self._context.check(self._user, "get", kind, key.mesh, stored.core_name)
        except Forbidden:
            return False
        return True
