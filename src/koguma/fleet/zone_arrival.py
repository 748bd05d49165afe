"""Zone arrival: what Global asks a zone about a revision, and what the zone answers, as plain values.

The question says by kinds and meshes which proxies count: those that the user who asks Global may list there.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from koguma.fleet.arrival import Arrivals
from koguma.fleet.lack_view import Lack
from koguma.fleet.proxy_progress import ChangeSpan, ProxyProgress
from koguma.model.errors import Unavailable
from koguma.model.resource import Key
from koguma.model.violation import cut

LACKING_MAX: Final = 50  # proxies that an answer names
_TEXT_MAX: Final = 1000
_NAME_MAX: Final = 500
_OBJECTS_MAX: Final = 20  # that a lack names

_Count = Annotated[int, msgspec.Meta(ge=0)]
ListedMeshes = Mapping[str, tuple[str, ...] | None]  # by kind of proxy; None: all meshes


class ZoneArrivalQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a revision of Global's is, which the zone has stored.

    That was at `own`, a revision of its store, at the latest; 0: the one that the zone is at.
    """

    revision: int
    own: int
    listed: ListedMeshes
    objects: tuple[str, ...] = ()  # KRIs
    counts_absent: bool = True

    def is_counted(self, key: Key) -> bool:
        """Whether a proxy counts."""
        meshes = self.listed.get(key.kind, ())
        return meshes is None or key.mesh in meshes


class LackingProxy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A proxy that lacks it, and why."""

    key: Key
    lack: Lack
    instance: str = ""  # its control plane


class ZoneArrivalAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far it is; what is not known counts as lacking."""

    own: int  # the revision of the zone's store
    n_proxies: _Count
    n_affected: _Count
    n_lacking: _Count
    lacking: tuple[LackingProxy, ...] = ()  # the first of them
    instances: tuple[str, ...] = ()  # control planes of the zone that have not compiled it yet
    problem: str = ""  # why the proxies of other control planes of the zone are not known
    kept: str = ""  # why the zone keeps what Global does not have any more

    @property
    def is_complete(self) -> bool:
        """Whether it has arrived."""
        return not (self.n_lacking or self.lacking or self.instances or self.problem or self.kept)


def answer(arrivals: Arrivals, asked: ZoneArrivalQuestion, had: int, kept: str) -> ZoneArrivalAnswer:
    """A zone's answer.

    `had`: at this revision of its own it had nothing of the one that is asked about; 0: not known. Proxies
    may have refused it anywhere since. `kept`: why it keeps what Global does not have any more.
    """
    own = asked.own or arrivals.newest
    if not had <= own <= arrivals.newest:
        raise Unavailable(f"there is no revision {own} after {had}: the newest one is {arrivals.newest}")
    change = ChangeSpan(had, own)
    found = arrivals.of(change, asked.objects, is_counted=asked.is_counted, absent=asked.counts_absent)

    def lacking(progress: ProxyProgress) -> LackingProxy:
        state, lack = arrivals.lack(progress, change, asked.objects)
        return LackingProxy(progress.key, shortened(lack), state.instance if state is not None else "")

    return ZoneArrivalAnswer(
        own,
        found.n_proxies,
        found.n_affected,
        len(found.lacking),
        tuple(map(lacking, found.lacking[:LACKING_MAX])),
        found.instances[:LACKING_MAX],
        found.problem,
        kept,
    )


def shortened(lack: Lack) -> Lack:
    """A lack of limited size."""
    objects = tuple(cut(each, _NAME_MAX) for each in lack.objects[:_OBJECTS_MAX])
    return msgspec.structs.replace(
        lack, reason=cut(lack.reason, _NAME_MAX), text=cut(lack.text, _TEXT_MAX), objects=objects
    )
