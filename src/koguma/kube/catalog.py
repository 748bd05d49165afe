"""Catalog: all endpoints at one moment, what their objects look like, and how they merge.

A catalog never changes: where endpoints come or go at run time, another one takes its place. Schemas and
merge schemas are made on first use; those of the built-in kinds are shared by all catalogs.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache

import msgspec

from koguma.kube import endpoints, merge_schema, schemas, v1_conversion
from koguma.kube.kinds import ALIAS_KINDS, NATIVE_KINDS, REVIEW_KINDS, reviews
from koguma.kube.merge_schema import MergeSchema
from koguma.kube.registry import Converter, KubeEndpoint, Registry
from koguma.kube.schemas import Schemas
from koguma.model.kind import Kind, Kinds


class Catalog:
    """The endpoints over some kinds and Kubernetes' own, and those that were added at run time."""

    def __init__(
        self,
        kinds: Kinds,
        added: tuple[KubeEndpoint, ...] = (),
        remote_ids: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._kinds = kinds
        self._added = added
        self.registry = Registry((*built_in(kinds), *added), remote_ids)
        self._by_set = {kind.stored_as: kind for kind in (*kinds, *NATIVE_KINDS)}
        self._by_set |= {each.set.stored_as: each.kind for each in added}
        self._stored = {
            each.set.stored_as: each
            for each in self.registry
            if each.set.kind is not None and each.api_version == each.set.version
        }
        self._custom = {each.set.stored_as: each for each in added if each.custom is not None}
        self._merge_schemas: dict[tuple[str, str], MergeSchema] = {}

    @cached_property
    def schemas(self) -> Schemas:
        """The schemas of everything that is served."""
        if not self._added:
            return schemas_of(self.registry, self._kinds)
        return schemas_of(self._added, self._kinds, of(self._kinds).schemas)

    def kind(self, stored_as: str) -> Kind | None:
        """The kind of objects whose keys have this word."""
        return self._by_set.get(stored_as)

    def stored(self, stored_as: str) -> KubeEndpoint:
        """The endpoint that serves objects in the version in which they are stored."""
        return self._stored[stored_as]

    def custom(self, stored_as: str) -> KubeEndpoint | None:
        """An endpoint of a custom resource; None for all other kinds, and where nobody serves it."""
        return self._custom.get(stored_as)

    def storage_version(self, stored_as: str) -> str:
        """The group and version in which custom objects are written today; empty where nobody serves them."""
        endpoint = self._custom.get(stored_as)
        return endpoint.set.version if endpoint else ""

    def merge_schema(self, endpoint: KubeEndpoint) -> MergeSchema:
        """How the documents of an endpoint merge."""
        key = (endpoint.api_version, endpoint.kind_name)
        known = self._merge_schemas.get(key)
        if known is None:
            schema = self.schemas.of(endpoint)
            known = self._merge_schemas[key] = merge_schema.merge_schema_of(schema, self.schemas.resolve)
        return known


@lru_cache(maxsize=4)
def of(kinds: Kinds) -> Catalog:
    """The catalog of these kinds alone, made once."""
    return Catalog(kinds)


@lru_cache(maxsize=4)
def built_in(kinds: Kinds) -> tuple[KubeEndpoint, ...]:
    """The endpoints that a control plane with these kinds has in any case."""
    return (*endpoints.native(), *endpoints.ours(kinds, _converter))


def _converter(kind: Kind) -> Converter:
    converter = v1_conversion.converter(kind)
    return msgspec.structs.replace(
        converter,
        refusals=lambda spec: v1_conversion.refusals(kind, spec),
        relocated=lambda violations: v1_conversion.relocated(kind, violations),
    )


def schemas_of(served: Iterable[KubeEndpoint], kinds: Kinds, known: Schemas | None = None) -> Schemas:
    """The schemas of these endpoints, beside those that are known."""
    without = {(v1_conversion.VERSION, kind.name): v1_conversion.deprecated(kind) for kind in kinds}
    served = tuple(served)
    requests = [endpoints.TOKEN_REQUEST for each in served if endpoints.TOKEN in each.subresources]
    review_kinds = (*REVIEW_KINDS.values(), reviews.TOKEN_REQUEST)
    parts = {(f"{kind.group}/v1", kind.name): schemas.object_parts_of(kind) for kind in review_kinds}
    parts |= {
        version_and_kind: schemas.object_parts_of(kind) for version_and_kind, kind in ALIAS_KINDS.items()
    }
    return Schemas((*served, *requests), without, parts, known)
