"""Swarm proxy: the requests of an Envoy on its ADS stream, without the Envoy.

It subscribes to all clusters, then to the endpoints of EDS clusters, then to all listeners, and then to what
these reference: routes, secrets, extensions. Every response is ACKed. A second stream begins with
initial_resource_versions.
"""

import time
from collections.abc import Iterable, Iterator
from sys import intern
from typing import Any, Final

from google.protobuf import json_format

from bench.swarm_wire import Call
from koguma.envoy.schema import Schema
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, EXTENSION, LISTENER, ROUTES, SECRET, TYPE_URLS

PATH: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_TYPES: Final = {url: type_ for type_, url in TYPE_URLS.items()}
_REFERRERS: Final = (CLUSTER, LISTENER, EXTENSION)  # types that reference others
_UNSHARED: Final = (ENDPOINTS, ROUTES)  # referenced by one resource only, so unneeded when that is removed

References = tuple[tuple[str, str], ...]  # types and names


class ResourceReader:
    """Parses the references of resources: once for each version, however many proxies get it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.response: Any = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryResponse")
        self.request: Any = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
        self._references: dict[str, References] = {}

    def references(self, type_: str, version: str, resource: Any) -> References:
        """What a resource references, by type and name."""
        references = self._references.get(version)
        if references is None:
            message = self._schema.resolve(TYPE_URLS[type_]).FromString(resource.value)
            data = json_format.MessageToDict(
                message, preserving_proto_field_name=True, descriptor_pool=self._schema.pool
            )
            own = [(ENDPOINTS, _endpoints_name(data))] if data.get("type") == "EDS" else []
            references = self._references[version] = tuple(dict.fromkeys((*own, *_references_in(data))))
        return references

    def known_references(self, version: str) -> References:
        """The references of a version that was parsed before."""
        return self._references.get(version, ())


def _endpoints_name(cluster: dict[str, Any]) -> str:
    return intern((cluster.get("eds_cluster_config") or {}).get("service_name") or cluster["name"])


def _references_in(data: Any) -> Iterator[tuple[str, str]]:
    if isinstance(data, list):
        for item in data:
            yield from _references_in(item)
    if not isinstance(data, dict):
        return
    if "config_discovery" in data:
        yield EXTENSION, intern(data["name"])
    for name, value in data.items():
        if name == "rds":
            yield ROUTES, intern(value["route_config_name"])
        elif "sds_secret_config" in name:
            for config in value if isinstance(value, list) else [value]:
                yield SECRET, intern(config["name"])
        else:
            yield from _references_in(value)


class Window:
    """What all proxies of a group received since the counters were reset."""

    def __init__(self) -> None:
        self.number = 0
        self.clear()

    def clear(self) -> None:
        """Reset the counters."""
        self.number += 1
        self.n_messages = self.n_resources = self.n_unchanged = self.n_ended = 0
        self.received_at = 0.0


class Proxy:
    """One proxy: its node, what it holds, and its stream if it has one."""

    __slots__ = (
        "_first_requests",
        "_has_listeners",
        "_held",
        "_node",
        "_reader",
        "_subscribed",
        "_window",
        "acked_at",
        "call",
        "mark",
    )
    __slots__ += ("recorded", "token")

    def __init__(self, reader: ResourceReader, window: Window, token: str, node: Any) -> None:
        self._reader, self._window, self._node = reader, window, node
        self.token = token
        self.call: Call | None = None
        self.recorded: list[bytes] | None = None
        self.acked_at = 0.0
        self.mark = 0  # the window of its last response
        self._held: dict[str, dict[str, str]] = {type_: {} for type_ in TYPE_URLS}
        self._subscribed: dict[str, dict[str, None]] = {type_: {} for type_ in TYPE_URLS}
        self._has_listeners = False
        self._first_requests: list[bytes] = []

    @property
    def id(self) -> str:
        """The id of its node."""
        return str(self._node.id)

    def connection(self) -> Call:
        """A new stream."""
        self.call = Call(PATH, self.token, self._on_response, self._on_end)
        return self.call

    def prepare(self) -> None:
        """Encode the first requests ahead: real proxies do that on machines of their own."""
        if self._first_requests:
            return
        is_new = not self._has_listeners
        self._first_requests = [self._request(CLUSTER, with_node=True)]
        for type_ in () if is_new else (SECRET, ENDPOINTS, EXTENSION, LISTENER, ROUTES):
            if self._subscribed[type_] or type_ == LISTENER:
                self._first_requests.append(self._request(type_, self._subscribed[type_]))

    def send_first_requests(self) -> None:
        """Send the first requests: new subscriptions, or those of the last stream with its versions."""
        requests, self._first_requests = self._first_requests, []
        if self.call is not None:
            self.call.send(*requests)

    def _subscribe_all(self, type_: str) -> None:
        self._send(self._request(type_))

    def _request(self, type_: str, names: Iterable[str] = (), *, with_node: bool = False) -> bytes:
        request = self._reader.request(type_url=TYPE_URLS[type_], resource_names_subscribe=names)
        if with_node:
            request.node.CopyFrom(self._node)
        if self._held[type_]:
            request.initial_resource_versions.update(self._held[type_])
        return bytes(request.SerializeToString())

    def _send(self, message: bytes) -> None:
        if self.call is not None:
            self.call.send(message)

    def _on_end(self) -> None:
        self.call = None
        self._window.n_ended += 1

    def _on_response(self, message: bytes) -> None:
        response = self._reader.response.FromString(message)
        if self.recorded is not None:
            self.recorded.append(message)
        type_ = _TYPES[response.type_url]
        added, removed = self._apply(type_, response)
        self._send(_ack(response.type_url, response.nonce))
        self.acked_at = self._window.received_at = time.monotonic()
        self.mark = self._window.number
        self._window.n_messages += 1
        for changed_type in added.keys() | removed.keys():
            self._change_subscription(
                changed_type, added.get(changed_type, ()), removed.get(changed_type, ())
            )
        has_clusters = type_ == ENDPOINTS or (type_ == CLUSTER and not self._subscribed[ENDPOINTS])
        if has_clusters and not self._has_listeners:
            self._has_listeners = True
            self._subscribe_all(LISTENER)

    def _apply(self, type_: str, response: Any) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Apply a response; the names to subscribe to because of it, and those to unsubscribe from."""
        held = self._held[type_]
        added: dict[str, list[str]] = {}
        removed: dict[str, list[str]] = {}
        self._window.n_resources += len(response.resources)
        for sent in response.resources:
            name, version = intern(sent.name), intern(sent.version)
            before = held.get(name, "")
            if before == version:
                self._window.n_unchanged += 1
                continue
            held[name] = version
            if type_ in _REFERRERS:
                after = self._reader.references(type_, version, sent.resource)
                self._compare_references(self._reader.known_references(before), after, added, removed)
        for name in response.removed_resources:
            self._compare_references(self._reader.known_references(held.pop(name, "")), (), added, removed)
        return added, removed

    def _compare_references(
        self,
        before: References,
        after: References,
        added: dict[str, list[str]],
        removed: dict[str, list[str]],
    ) -> None:
        for type_, name in after:
            if name not in self._subscribed[type_]:
                added.setdefault(type_, []).append(name)
                self._subscribed[type_][name] = None
        for type_, name in before:
            if type_ in _UNSHARED and (type_, name) not in after:
                removed.setdefault(type_, []).append(name)
                self._subscribed[type_].pop(name, None)
                self._held[type_].pop(name, None)

    def _change_subscription(self, type_: str, added: Iterable[str], removed: Iterable[str]) -> None:
        request = self._reader.request(
            type_url=TYPE_URLS[type_], resource_names_subscribe=added, resource_names_unsubscribe=removed
        )
        self._send(request.SerializeToString())


def _ack(type_url: str, nonce: str) -> bytes:
    """An ACK: a request with a type and a nonce."""
    return (
        b"\x12"
        + bytes((len(type_url),))
        + type_url.encode()
        + b"\x32"
        + bytes((len(nonce),))
        + nonce.encode()
    )
