"""Pipeline: from stored objects to what each Envoy gets, stage by stage. Start reading here.

    stored objects -> loading -> world -> match -> rules -> build -> snapshot -> watcher -> the fleet
                                                     |
                                                     +-> inspect, rules_view: what people are shown

This page is the table of contents. Each name is a function of a stage; the module that defines it explains
it. All but the inputs are pure questions (`incremental`) that can be asked at any time: an answer is kept
until something that it read has changed.
"""

from typing import Final

from koguma.core import inbound, inspect, items, loading, match, problems, rules, rules_view, world
from koguma.core.build import clusters, internals, outbound, overlays, snapshot_watcher
from koguma.core.build import inbound as build_inbound
from koguma.core.build import snapshot as snapshots

# Inputs: stored objects, and changes of them.
load: Final = loading.load
take: Final = loading.take

# World: the proxies and destinations of a mesh, read from stored objects.
proxy: Final = world.proxy  # a Dataplane: its inbounds, labels, and what it can call
destination: Final = world.destination  # a MeshService, MeshExternalService or MeshMultiZoneService
reached: Final = world.reached  # the ports of destinations that a proxy can call

# Match: which policies select which proxies. It reads selectors and labels, never confs, so that editing a
# value matches nothing again.
traits: Final = match.traits  # what selectors see of a proxy; proxies with equal traits share answers
matched: Final = match.matched  # the policies of one kind that select proxies with these traits

# Rules: the entries of these policies that hold for each port, in order of precedence, and their merge.
proxy_class: Final = rules.class_of  # what proxies that are configured alike share
outbound_rules: Final = rules.outbound  # for calls to each port, through a route or not
inbound_rules: Final = inbound.of  # for calls that arrive at one inbound, by client
proxy_rules: Final = rules.whole_proxy  # for the proxy as a whole
conf: Final = items.conf  # the fields that entries set together
route_rules: Final = items.route_rules  # the rules of MeshHTTPRoutes, merged

# Build: rules become Envoy resources. Hooks of policies turn a conf into overlays over a skeleton.
policy_overlays: Final = overlays.outbound
outbound_resources: Final = outbound.resources  # listeners, routes and clusters of a class
endpoints: Final = clusters.assignments
inbound_resources: Final = build_inbound.resources
internal_resources: Final = internals.resources  # readiness, DNS, passthrough, admin

# Snapshot: everything that one Envoy gets but secrets.
shared_snapshot: Final = snapshots.shared  # the half that proxies share
own_snapshot: Final = snapshots.own  # the half of one proxy
snapshot: Final = snapshots.of
SnapshotWatcher: Final = snapshot_watcher.SnapshotWatcher  # which proxies get another snapshot after a change

# For people: the same rules and confs, with who set each field; and lint problems.
layout: Final = inspect.layout
outbound_policies: Final = inspect.outbound_policies
inbound_policies: Final = inspect.inbound_policies
whole_policies: Final = inspect.whole_policies
all_rules: Final = rules_view.of_proxy
problems_of_mesh: Final = problems.of_mesh
