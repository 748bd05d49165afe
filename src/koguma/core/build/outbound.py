"""Outbound: the listeners, routes and clusters with which the proxies of a class call destinations.

What a class calls is partitioned into shards by destination. A shard is asked for by the rules that hold for
its ports and not by the class, since most of what one class calls equals what another one calls. So a change
of one port rebuilds one shard, once for all classes that share it. Listeners come first
(`outbound_listeners`); their routes say which clusters are needed (`outbound_clusters`).
"""

from itertools import chain

import msgspec

from koguma.core.build import outbound_clusters, outbound_listeners, outbound_rules, outbound_shards
from koguma.core.build.clusters import ClientContext, LoadAssignmentSpec
from koguma.core.build.outbound_clusters import Required
from koguma.core.build.outbound_listeners import ListenerShard, ListenerSpec, OutboundPort
from koguma.core.build.outbound_rules import ShardRules
from koguma.core.build.skeletons import ListenerBinding
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.rules import ProxyClass
from koguma.envoy.snapshot import Bundle
from koguma.model.resource import Key

RequiredByShard = Group[Group[Required]]  # of every shard, in order


class Outbounds(msgspec.Struct, frozen=True):
    """What proxies of a class get in order to call others; endpoints are built apart, for the ports named."""

    bundle: Bundle
    load_assignments: Group[Group[LoadAssignmentSpec]]
    matched: Group[ListenerSpec] = Group(())  # called by domains or addresses that they match


@question
def resources(
    db: Db,
    proxy_class: ProxyClass,
    ports: Group[OutboundPort],
    client: ClientContext,
    binding: ListenerBinding,
) -> Outbounds:
    """What proxies of a class call; one value for all proxies with equal arguments.

    It is joined in two steps, from batches of shards and these from shards, so that a change of one port
    joins few bundles again.
    """
    listeners = [
        _joined_listeners(db, batch, client, binding) for batch in _listener_batches(db, proxy_class, ports)
    ]
    called_bundle, load_assignments = called(
        db, proxy_class, Group(each.required for each in listeners), client
    )
    bundles = (*(each.bundle for each in listeners), *called_bundle)
    matched = Group(chain.from_iterable(each.matched for each in listeners))
    return Outbounds(outbound_shards.joined(bundles), load_assignments, matched)


def called(
    db: Db,
    proxy_class: ProxyClass,
    required: Group[tuple[tuple[int, Required], ...]],
    client: ClientContext,
) -> tuple[tuple[Bundle, ...], Group[Group[LoadAssignmentSpec]]]:
    """The clusters that some listeners require, by shard number, and the ports whose endpoints they need."""
    by_shard = _required_by_shard(db, required)
    clusters = [_joined_clusters(db, batch, client) for batch in _cluster_batches(db, proxy_class, by_shard)]
    load_assignments = Group(chain.from_iterable(each.load_assignments for each in clusters))
    return tuple(each.bundle for each in clusters), load_assignments


@question
def _joined_listeners(
    db: Db,
    batch: Group[tuple[ShardRules, Group[OutboundPort]]],
    client: ClientContext,
    binding: ListenerBinding,
) -> ListenerShard:
    shards = [outbound_listeners.listeners(db, rules, ports, client, binding) for rules, ports in batch]
    required = tuple(chain.from_iterable(shard.required for shard in shards))
    matched = tuple(chain.from_iterable(shard.matched for shard in shards))
    return ListenerShard(outbound_shards.joined(tuple(shard.bundle for shard in shards)), required, matched)


@question
def _joined_clusters(
    db: Db, batch: Group[tuple[ShardRules, Group[Required]]], client: ClientContext
) -> Outbounds:
    shards = [outbound_clusters.clusters(db, rules, required, client) for rules, required in batch]
    bundle = outbound_shards.joined(tuple(shard.bundle for shard in shards))
    return Outbounds(bundle, Group(shard.load_assignments for shard in shards))


@question
def _listener_batches(
    db: Db, proxy_class: ProxyClass, ports: Group[OutboundPort]
) -> tuple[Group[tuple[ShardRules, Group[OutboundPort]]], ...]:
    find = outbound_rules.finder(db, proxy_class)
    return outbound_shards.batches(
        (find((port.destination, port.section) for port in shard), shard) for shard in shards(db, ports)
    )


@question
def _required_by_shard(_db: Db, required: Group[tuple[tuple[int, Required], ...]]) -> RequiredByShard:
    """The required clusters of every shard; one value for all classes that need the same."""
    by_shard: dict[int, list[Required]] = {}
    for number, clusters in chain.from_iterable(required):
        by_shard.setdefault(number, []).append(clusters)
    return Group(Group(by_shard[number]) for number in sorted(by_shard))


@question
def _cluster_batches(
    db: Db, proxy_class: ProxyClass, required: RequiredByShard
) -> tuple[Group[tuple[ShardRules, Group[Required]]], ...]:
    find = outbound_rules.finder(db, proxy_class)
    shards = zip(required, _required_ports(db, required), strict=True)
    return outbound_shards.batches((find(ports), clusters) for clusters, ports in shards)


@question
def _required_ports(_db: Db, required: RequiredByShard) -> tuple[tuple[tuple[Key, str], ...], ...]:
    """The ports of required clusters, shard by shard; asked once for all classes that need the same."""
    shards = (
        {(cluster.destination, cluster.section) for cluster in chain.from_iterable(shard)}
        for shard in required
    )
    return tuple(tuple(sorted(ports)) for ports in shards)


@question
def shards(_db: Db, ports: Group[OutboundPort]) -> tuple[Group[OutboundPort], ...]:
    """Ports by shard; the shard of a port depends on its destination alone."""
    by_shard: dict[int, list[OutboundPort]] = {}
    for port in ports:
        by_shard.setdefault(outbound_shards.shard_number(port.destination), []).append(port)
    return tuple(Group(by_shard[number]) for number in sorted(by_shard))
