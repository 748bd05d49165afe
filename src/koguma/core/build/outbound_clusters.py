"""Outbound clusters: the clusters of some destination ports, and the ports whose endpoints they need."""

from collections.abc import Iterable
from itertools import chain

import msgspec

from koguma.core.build import clusters as one_cluster
from koguma.core.build import encoding, overlays
from koguma.core.build.clusters import ClientContext, ClusterSpec, LoadAssignmentSpec
from koguma.core.build.outbound_rules import ShardRules
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model.resource import Key


class RequiredCluster(msgspec.Struct, frozen=True):
    """The cluster of a destination's port, needed by a route or TCP proxy.

    With keys, it has to be divided into subsets by the values of these tags.
    """

    destination: Key
    section: str
    subset_keys: tuple[str, ...] = ()


Required = Group[RequiredCluster]


class ClusterShard(msgspec.Struct, frozen=True):
    """The clusters of some ports, and the ports whose endpoints these need."""

    bundle: Bundle
    load_assignments: Group[LoadAssignmentSpec]


@question
def clusters(db: Db, rules: ShardRules, required: Group[Required], client: ClientContext) -> ClusterShard:
    """The clusters of some ports."""
    built: list[XdsResource | Failure] = []
    load_assignments: list[LoadAssignmentSpec] = []
    for (destination, section), subsets in sorted(_subsets(required).items()):
        entries = (*rules.of(destination, section).entries, *rules.whole)
        confs = overlays.merged_confs(db, entries, client.mesh)
        policy_overlays = one_cluster.cluster_overlays(db, destination, section, confs, client)
        built += one_cluster.cluster(db, ClusterSpec(destination, section, policy_overlays, client, subsets))
        load_assignments += one_cluster.load_assignments(db, destination, section, entries)
    return ClusterShard(encoding.bundled(built), Group(load_assignments))


def _subsets(
    required: Iterable[Required],
) -> dict[tuple[Key, str], tuple[tuple[str, ...], ...]]:
    """The required ports, each with the sets of tag keys by which its endpoints are selected."""
    by_port: dict[tuple[Key, str], set[tuple[str, ...]]] = {}
    for cluster in chain.from_iterable(required):
        subsets = by_port.setdefault((cluster.destination, cluster.section), set())
        if cluster.subset_keys:
            subsets.add(cluster.subset_keys)
    return {port: tuple(sorted(subsets)) for port, subsets in by_port.items()}
