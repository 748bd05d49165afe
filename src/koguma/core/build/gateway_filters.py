"""Gateway filters: HTTP filters of a gateway whose configuration comes with its virtual hosts and routes.

A limit for all that a listener sends on stands at its virtual hosts, so that the requests of all routes to a
host are counted together; one for a single route stands at that route, in place of it.
"""

from collections.abc import Iterable
from typing import Final

from koguma.core.build.overlays import PolicyOverlays
from koguma.envoy import by_caller, filters, proto_json
from koguma.envoy.proto_json import Data

_FIELD: Final = "typed_per_filter_config"
_OFF: Final = proto_json.typed("envoy.config.route.v3.FilterConfig", disabled=True)


def _configs(policy_overlays: PolicyOverlays) -> Data:
    every = policy_overlays.part("on_routes")
    return {filters.name_of(key): config for each in every for key, config in sorted(each.items())}


def on_host(host: Data, of_listener: PolicyOverlays) -> Data:
    """A virtual host with what policies say about all that its listener sends on."""
    configs = _configs(of_listener)
    return {**host, _FIELD: {**(host.get(_FIELD) or {}), **configs}} if configs else host


def on_route(route: Data, of_route: PolicyOverlays, of_listener: PolicyOverlays) -> Data:
    """A route with what policies say about it and not about all of its listener."""
    wide, own = _configs(of_listener), _configs(of_route)
    configs = {name: own.get(name, _OFF) for name in (*wide, *own) if own.get(name) != wide.get(name)}
    return {**route, _FIELD: {**(route.get(_FIELD) or {}), **configs}} if configs else route


def on_listener(all_overlays: Iterable[PolicyOverlays]) -> Data:
    """The filters that a listener has, disabled, until hosts or routes configure them."""
    keys = {*filters.RESERVED}
    keys |= {key for each in all_overlays for part in each.part("on_routes") for key in part}
    return {key: by_caller.disabled_filter(filters.name_of(key)) for key in keys}
