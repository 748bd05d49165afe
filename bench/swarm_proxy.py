"""Swarm proxy: what an Envoy says on its ADS stream, without the Envoy.

It asks for all clusters, then for the endpoints of those that have them elsewhere, then for all listeners,
and then for what these name: routes, secrets, extensions. Everything that comes is read for such names and is
answered with its nonce. On a second stream it says which versions it has from the first one.
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
_WORDS: Final = {url: word for word, url in TYPE_URLS.items()}
_NAMING: Final = (CLUSTER, LISTENER, EXTENSION)  # the types that name others
_OWN: Final = (ENDPOINTS, ROUTES)  # named by one alone, so nobody needs them when that one goes

Named = tuple[tuple[str, str], ...]  # types and names


class Reader:
    """Reads responses, and what resources name: once for each version, however many proxies get it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.response: Any = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryResponse")
        self.request: Any = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
        self._named: dict[str, Named] = {}

    def named(self, word: str, version: str, resource: Any) -> Named:
        """What a resource names, by type and name."""
        found = self._named.get(version)
        if found is None:
            message = self._schema.resolve(TYPE_URLS[word]).FromString(resource.value)
            data = json_format.MessageToDict(
                message, preserving_proto_field_name=True, descriptor_pool=self._schema.pool
            )
            own = [(ENDPOINTS, _endpoints_name(data))] if data.get("type") == "EDS" else []
            found = self._named[version] = tuple(dict.fromkeys((*own, *_names_in(data))))
        return found

    def known(self, version: str) -> Named:
        """What a version that was read before names."""
        return self._named.get(version, ())


def _endpoints_name(cluster: dict[str, Any]) -> str:
    return intern((cluster.get("eds_cluster_config") or {}).get("service_name") or cluster["name"])


def _names_in(data: Any) -> Iterator[tuple[str, str]]:
    if isinstance(data, list):
        for each in data:
            yield from _names_in(each)
    if not isinstance(data, dict):
        return
    if "config_discovery" in data:
        yield EXTENSION, intern(data["name"])
    for name, value in data.items():
        if name == "rds":
            yield ROUTES, intern(value["route_config_name"])
        elif "sds_secret_config" in name:
            for each in value if isinstance(value, list) else [value]:
                yield SECRET, intern(each["name"])
        else:
            yield from _names_in(value)


class Window:
    """What all proxies of a group heard since somebody began to count."""

    def __init__(self) -> None:
        self.number = 0
        self.clear()

    def clear(self) -> None:
        """Count from zero."""
        self.number += 1
        self.n_messages = self.n_resources = self.n_unchanged = self.n_ended = 0
        self.heard_at = 0.0


class Proxy:
    """One proxy: who it is, what it has, and its stream if it has one."""

    __slots__ = (
        "_asked",
        "_greeting",
        "_held",
        "_is_listening",
        "_node",
        "_reader",
        "_window",
        "acked_at",
        "call",
        "mark",
    )
    __slots__ += ("recorded", "token")

    def __init__(self, reader: Reader, window: Window, token: str, node: Any) -> None:
        self._reader, self._window, self._node = reader, window, node
        self.token = token
        self.call: Call | None = None
        self.recorded: list[bytes] | None = None
        self.acked_at = 0.0
        self.mark = 0  # the window in which it was last answered
        self._held: dict[str, dict[str, str]] = {word: {} for word in TYPE_URLS}
        self._asked: dict[str, dict[str, None]] = {word: {} for word in TYPE_URLS}
        self._is_listening = False
        self._greeting: list[bytes] = []

    @property
    def id(self) -> str:
        """The id of its node."""
        return str(self._node.id)

    def connection(self) -> Call:
        """A new stream, on which it introduces itself when it is open."""
        self.call = Call(PATH, self.token, self._hear, self._lose)
        return self.call

    def prepare(self) -> None:
        """Write down what it will say when it is connected: real proxies do that on machines of their own."""
        if self._greeting:
            return
        is_new = not self._is_listening
        self._greeting = [self._request(CLUSTER, with_node=True)]
        for word in () if is_new else (SECRET, ENDPOINTS, EXTENSION, LISTENER, ROUTES):
            if self._asked[word] or word == LISTENER:
                self._greeting.append(self._request(word, self._asked[word]))

    def greet(self) -> None:
        """Begin to talk: ask for everything, or say what it has from before."""
        greeting, self._greeting = self._greeting, []
        if self.call is not None:
            self.call.say(*greeting)

    def _ask(self, word: str) -> None:
        self._say(self._request(word))

    def _request(self, word: str, names: Iterable[str] = (), *, with_node: bool = False) -> bytes:
        request = self._reader.request(type_url=TYPE_URLS[word], resource_names_subscribe=names)
        if with_node:
            request.node.CopyFrom(self._node)
        if self._held[word]:
            request.initial_resource_versions.update(self._held[word])
        return bytes(request.SerializeToString())

    def _say(self, message: bytes) -> None:
        if self.call is not None:
            self.call.say(message)

    def _lose(self) -> None:
        self.call = None
        self._window.n_ended += 1

    def _hear(self, message: bytes) -> None:
        response = self._reader.response.FromString(message)
        if self.recorded is not None:
            self.recorded.append(message)
        word = _WORDS[response.type_url]
        asked, left = self._take(word, response)
        self._say(_ack(response.type_url, response.nonce))
        self.acked_at = self._window.heard_at = time.monotonic()
        self.mark = self._window.number
        self._window.n_messages += 1
        for other in asked.keys() | left.keys():
            self._change(other, asked.get(other, ()), left.get(other, ()))
        has_clusters = word == ENDPOINTS or (word == CLUSTER and not self._asked[ENDPOINTS])
        if has_clusters and not self._is_listening:
            self._is_listening = True
            self._ask(LISTENER)

    def _take(self, word: str, response: Any) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Note what came; the names to ask for because of it, and those to ask for no longer."""
        held = self._held[word]
        asked: dict[str, list[str]] = {}
        left: dict[str, list[str]] = {}
        self._window.n_resources += len(response.resources)
        for each in response.resources:
            name, version = intern(each.name), intern(each.version)
            before = held.get(name, "")
            if before == version:
                self._window.n_unchanged += 1
                continue
            held[name] = version
            if word in _NAMING:
                named = self._reader.named(word, version, each.resource)
                self._compare(self._reader.known(before), named, asked, left)
        for name in response.removed_resources:
            self._compare(self._reader.known(held.pop(name, "")), (), asked, left)
        return asked, left

    def _compare(
        self, before: Named, after: Named, asked: dict[str, list[str]], left: dict[str, list[str]]
    ) -> None:
        for word, name in after:
            if name not in self._asked[word]:
                asked.setdefault(word, []).append(name)
                self._asked[word][name] = None
        for word, name in before:
            if word in _OWN and (word, name) not in after:
                left.setdefault(word, []).append(name)
                self._asked[word].pop(name, None)
                self._held[word].pop(name, None)

    def _change(self, word: str, asked: Iterable[str], left: Iterable[str]) -> None:
        request = self._reader.request(
            type_url=TYPE_URLS[word], resource_names_subscribe=asked, resource_names_unsubscribe=left
        )
        self._say(request.SerializeToString())


def _ack(type_url: str, nonce: str) -> bytes:
    """An answer that takes all: a request with a type and a nonce."""
    return (
        b"\x12"
        + bytes((len(type_url),))
        + type_url.encode()
        + b"\x32"
        + bytes((len(nonce),))
        + nonce.encode()
    )
