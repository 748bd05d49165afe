"""Outbound rules of a shard: the policy entries that hold for calls of a proxy class to some ports.

Most ports have no policy of their own and share the entries about the whole mesh. These are kept once, and
only the other ports carry rules of their own, so that most classes get equal rules for most shards.
"""

from collections.abc import Callable, Iterable

import msgspec

from koguma.core import rules
from koguma.core.build import overlays
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries
from koguma.core.rules import PortRules, ProxyClass
from koguma.model.resource import Key


class ShardRules(msgspec.Struct, frozen=True, cache_hash=True):
    """What holds for calls to some ports: the same entries for most of them, rules of their own for a few."""

    common: Group[tuple[str, Entries]]
    named: tuple[PortRules, ...]
    whole: ByKind  # entries about whole proxies that act on their outbound traffic

    def of(self, destination: Key, section: str) -> PortRules:
        """What holds for calls to one port."""
        for port in self.named:
            if port.destination == destination and port.section == section:
                return port
        return PortRules(destination, section, self.common.members)


def finder(db: Db, proxy_class: ProxyClass) -> Callable[[Iterable[tuple[Key, str]]], ShardRules]:
    """A function that finds what holds for calls of a class to some ports."""
    of_class, whole = rules.outbound(db, proxy_class), overlays.on_outbounds(db, proxy_class)
    only_common = common_rules(db, of_class.common, whole)

    def find(ports: Iterable[tuple[Key, str]]) -> ShardRules:
        named = tuple(of_class.of(*port) for port in ports if port[0] in of_class.named)
        return ShardRules(of_class.common, named, whole) if named else only_common

    return find


@question
def common_rules(_db: Db, common: Group[tuple[str, Entries]], whole: ByKind) -> ShardRules:
    """The rules of ports that no policy names; one value for all classes, as it is often a key."""
    return ShardRules(common, (), whole)
