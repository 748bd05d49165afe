"""Discovery: which groups, versions and resources there are, in the plain and in the aggregated form.

Both forms say of a resource which set of objects it serves (`resourceID`, equal exactly for equal sets) and
in which version they are stored (`storageVersionHash`). Parts of objects have neither, and what is not stored
has no stored version; it still has a `resourceID`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from koguma.kube.aggregation import RemoteVersion, discovered, merged_groups
from koguma.kube.endpoints import part_endpoint
from koguma.kube.operations import subresource_verbs
from koguma.kube.registry import KubeEndpoint, Registry
from koguma.kube.schemas import group_version_kind
from koguma.model.schema import Json

AGGREGATED: Final = ("v2", "v2beta1")  # the versions of the aggregated form, the preferred one first


def core_versions(registry: Registry, address: str = "") -> Json:
    """`/api`: the versions of the core group. Clients of one network are told one address."""
    return {
        "kind": "APIVersions",
        "versions": list(registry.groups().get("", ())),
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def groups(registry: Registry, remotes: Sequence[RemoteVersion] = ()) -> Json:
    """`/apis`: all groups but the core one."""
    merged = merged_groups(registry.groups(), remotes)
    named = [_group(name, versions) for name, versions in merged.items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}


def group(registry: Registry, name: str, remotes: Sequence[RemoteVersion] = ()) -> Json | None:
    """`/apis/<group>`; None if there is no such group."""
    versions = merged_groups(registry.groups(), remotes).get(name)
    if not name or versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: tuple[str, ...]) -> dict[str, Json]:
    shown = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": shown, "preferredVersion": shown[0]}


def resources(registry: Registry, name: str, version: str, *, resource_ids: bool) -> Json | None:
    """`/apis/<group>/<version>`, `/api/v1`: the resources; None if there is no such version."""
    endpoints = registry.at(name, version)
    if not endpoints:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": endpoints[0].api_version,
        "resources": [
            entry for endpoint in endpoints for entry in _entries(endpoint, resource_ids=resource_ids)
        ],
    }


def _entries(endpoint: KubeEndpoint, *, resource_ids: bool) -> Iterator[Json]:
    yield {
        "name": endpoint.plural,
        "singularName": endpoint.singular,
        "namespaced": endpoint.namespaced,
        "kind": endpoint.kind_name,
        "verbs": list(endpoint.verbs),
        **_names(endpoint),
        **_identity(endpoint, resource_ids=resource_ids),
    }
    for part in endpoint.subresources:
        sent = part_endpoint(endpoint, part)
        yield {
            "name": f"{endpoint.plural}/{part}",
            "singularName": "",
            "namespaced": endpoint.namespaced,
            **({"group": sent.group, "version": sent.version} if sent is not endpoint else {}),
            "kind": sent.kind_name,
            "verbs": list(subresource_verbs(endpoint, part)),
        }


def _names(endpoint: KubeEndpoint) -> dict[str, Json]:
    entries = {"shortNames": list(endpoint.short_names), "categories": list(endpoint.categories)}
    return {key: value for key, value in entries.items() if value}


def _identity(endpoint: KubeEndpoint, *, resource_ids: bool) -> dict[str, Json]:
    entries = {
        "storageVersionHash": endpoint.set.version_hash,
        "resourceID": endpoint.set.id if resource_ids else "",
    }
    return {key: value for key, value in entries.items() if value}


def aggregated(
    registry: Registry,
    form: str,
    *,
    core: bool,
    resource_ids: bool,
    remotes: Sequence[RemoteVersion] = (),
) -> Json:
    """`/api` (core) and `/apis` (all others) with their resources, in a version of the aggregated form."""
    by_version = {(remote.service.group, remote.service.version): remote for remote in remotes}

    def shown(name: str, version: str) -> Json:
        remote = by_version.get((name, version))
        return discovered(remote) if remote else _version(registry, name, version, resource_ids=resource_ids)

    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [shown(name, version) for version in versions],
        }
        for name, versions in merged_groups(registry.groups(), remotes).items()
        if core is not bool(name)
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{form}",
        "metadata": {},
        "items": items,
    }


def _version(registry: Registry, name: str, version: str, *, resource_ids: bool) -> Json:
    resources = [_resource(endpoint, resource_ids=resource_ids) for endpoint in registry.at(name, version)]
    return {"version": version, "freshness": "Current", "resources": resources}


def _resource(endpoint: KubeEndpoint, *, resource_ids: bool) -> Json:
    kind = group_version_kind(endpoint)
    parts = [
        {
            "subresource": part,
            "responseKind": group_version_kind(part_endpoint(endpoint, part)),
            "verbs": list(subresource_verbs(endpoint, part)),
        }
        for part in endpoint.subresources
    ]
    return {
        "resource": endpoint.plural,
        "responseKind": kind,
        "scope": "Namespaced" if endpoint.namespaced else "Cluster",
        "singularResource": endpoint.singular,
        "verbs": list(endpoint.verbs),
        **_names(endpoint),
        **({"subresources": parts} if parts else {}),
        **_identity(endpoint, resource_ids=resource_ids),
    }
