"""Live catalog: the endpoints that are served now: built in, added at run time, or defined by what is stored.

The stored definitions decide, not whoever wrote them, so that a custom resource that came through another
control plane is served here too, with the revision that has it.
"""

import operator
from collections.abc import Iterator, Mapping

from koguma.kube import catalog
from koguma.kube.catalog import Catalog
from koguma.kube.custom import endpoints as custom_endpoints
from koguma.kube.kinds.custom_definitions import DEFINITION
from koguma.kube.registry import KubeEndpoint
from koguma.model.kind import Kinds
from koguma.model.resource import Resource
from koguma.store.state import State

Endpoints = tuple[KubeEndpoint, ...]


class LiveCatalog:
    """Keeps the current catalog; another one takes its place when endpoints come or go."""

    def __init__(self) -> None:
        self._added: Endpoints = ()
        self._remote_ids: Mapping[tuple[str, str], str] = {}
        self._made: tuple[tuple[object, ...], Catalog] | None = None
        self._of_definitions: dict[str, tuple[int, Endpoints]] = {}  # by uid, with the revision

    def current(self, kinds: Kinds, state: State) -> Catalog:
        """The catalog as of now; the same one until something changes."""
        definitions = state.listed(DEFINITION.stored_as)
        made, sources = self._made, (self._added, definitions, self._remote_ids)
        if made is None or not all(map(operator.is_, made[0], sources)):
            added = (*self._added, *self._custom(kinds, definitions))
            is_plain = not added and not self._remote_ids
            new = catalog.of(kinds) if is_plain else Catalog(kinds, added, self._remote_ids)
            made = self._made = (sources, new)
        return made[1]

    def trust(self, remote_ids: Mapping[tuple[str, str], str]) -> None:
        """Take ids of sets that other servers serve, by plural and group, for those of our own sets."""
        if remote_ids != self._remote_ids:
            self._remote_ids = remote_ids

    def serve(self, endpoint: KubeEndpoint) -> None:
        """Serve one more endpoint from now on, as an alias of a set that is served already."""
        self._added = (*self._added, endpoint)

    def _custom(self, kinds: Kinds, definitions: tuple[Resource, ...]) -> Iterator[KubeEndpoint]:
        """The endpoints of all definitions; the older one is served where two name the same kind.

        What is built in stays so in all versions, whatever definitions say of it.
        """
        built_in = (*catalog.built_in(kinds), *self._added)
        known = {(each.api_version, each.kind_name) for each in built_in}
        taken = {(each.group, word) for each in built_in for word in (each.kind_name, each.plural)}
        kept: dict[str, tuple[int, Endpoints]] = {}
        for definition in sorted(definitions, key=_age):
            kept[definition.uid] = self._endpoints(definition)
            for endpoint in kept[definition.uid][1]:
                name = (endpoint.api_version, endpoint.kind_name)
                words = {(endpoint.group, word) for word in (endpoint.kind_name, endpoint.plural)}
                if name not in known and taken.isdisjoint(words):
                    known.add(name)
                    yield endpoint
        self._of_definitions = kept

    def _endpoints(self, definition: Resource) -> tuple[int, Endpoints]:
        """Its endpoints, the very same until it changes, so that what was built of them is kept."""
        made = self._of_definitions.get(definition.uid)
        if made is None or made[0] != definition.revision:
            made = (definition.revision, custom_endpoints.of_definition(definition))
        return made


def _age(definition: Resource) -> tuple[str, str]:
    return definition.creation_time, definition.name
