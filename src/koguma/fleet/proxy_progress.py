"""Proxy progress: up to which revision a proxy has everything, in the few values that decide that.

It is made for each proxy of the fleet whenever somebody waits, so it is much smaller than a state.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from koguma.envoy import names
from koguma.envoy.snapshot import Failure
from koguma.fleet.proxy_state import MissingPart, ProxyState
from koguma.fleet.quarantine import HeldResource
from koguma.model import kri
from koguma.model.resource import Key

STUCK: Final = "proxy"  # the type of a failure that leaves a proxy without anything new


class ChangeSpan(NamedTuple):
    """A change that was stored after one revision, and at another one or before."""

    after: int
    revision: int


def change_at(revision: int) -> ChangeSpan:
    """The change of a revision."""
    return ChangeSpan(revision - 1, revision)


class RefusedSpan(NamedTuple):
    """A proxy has rejected something of the revisions after `had`, up to `revision`, or it was not built."""

    had: int
    revision: int
    objects: frozenset[str] = frozenset()  # KRIs of those that it may be about

    def is_about(self, change: ChangeSpan, objects: Collection[str] = ()) -> bool:
        """Whether it is about a change, or about one of these objects, whatever its revision is.

        The revision of an object grows with its status, too, such as that proxies refuse it.
        """
        is_within = self.had < change.revision and self.revision > change.after
        return is_within or not self.objects.isdisjoint(objects)


class ProxyProgress(NamedTuple):
    """How far a proxy is."""

    key: Key
    connected_at: datetime
    has: int  # it has acknowledged everything up to this revision, but for what it refused
    offered: int = 0  # the revision of its newest offer
    disconnected_at: datetime | None = None
    was_lost: bool = False  # it was connected to a control plane that is gone, and to no other since
    is_stuck: bool = False  # no configuration can be built for it
    lacks_parts: bool = False  # of its newest offer a part could not be built
    refused: tuple[RefusedSpan, ...] = ()  # and parts of policies that could not be built

    @property
    def precedence(self) -> tuple[bool, datetime]:
        """Of several about one proxy the last is true: a connection goes before the end of an earlier one."""
        return self.disconnected_at is None, self.connected_at

    def lacks(self, change: ChangeSpan, objects: Collection[str] = ()) -> bool:
        """Whether it has not got a change, or has refused one of these objects, as far as is known."""
        return (
            self.has < change.revision
            or self.is_stuck
            or (self.lacks_parts and self.offered > change.after)
            or any(span.is_about(change, objects) for span in self.refused)
        )

    def is_affected(self, change: ChangeSpan, objects: Collection[str] = ()) -> bool:
        """Whether it was offered something since a change, or still lacks it."""
        return self.offered > change.after or self.lacks(change, objects)


def progress_of(state: ProxyState) -> ProxyProgress:
    """The progress of a proxy by its state."""
    is_stuck = any(failure.type == STUCK for failure in state.failures)
    missing = missing_spans(state.missing_parts)
    return ProxyProgress(
        state.key,
        state.connected_at,
        has=state.revision,
        offered=state.offered,
        disconnected_at=state.disconnected_at,
        is_stuck=is_stuck,
        lacks_parts=not is_stuck and not missing.keys() >= {*state.failures},
        refused=(*refused_spans(state.held), *missing.values()),
    )


def refused_spans(held: Iterable[HeldResource]) -> tuple[RefusedSpan, ...]:
    """The revisions of which something is held back."""
    return tuple(RefusedSpan(each.had, each.revision, objects_of(each)) for each in held)


def missing_spans(parts: Iterable[MissingPart]) -> Mapping[Failure, RefusedSpan]:
    """The revisions with which parts of policies could not be built; later ones a proxy gets without them."""
    return {each.failure: RefusedSpan(each.had, each.revision) for each in parts}


def objects_of(held: HeldResource) -> frozenset[str]:
    """The objects that a refused resource may be about: what changed it, and what it is for."""
    named = names.resource(held.name)
    whole = f"{named.rpartition('_')[0]}_"  # without the section
    return frozenset({*held.policies, *((whole,) if kri.is_kri(named) else ())})
