"""Aggregation: groups and versions that other servers serve through this one, as APIServices say.

What a server says of its resources is passed on as it is, its `resourceID`s too: they are only as good as the
server. So an id of a remote resource that equals one of ours means nothing here, unless an administrator
marks its APIService as trusted.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.kube.kinds import apiregistration
from koguma.kube.kinds.parts import as_map
from koguma.model.access import Attempt
from koguma.model.resource import Resource
from koguma.model.schema import Json

TRUST_ANNOTATION: Final = "koguma.io/trusted-resource-ids"
# The headers that say to another server who a request is from; a client's own are never passed on.
USER_HEADER: Final = "X-Remote-User"
UID_HEADER: Final = "X-Remote-Uid"
GROUP_HEADER: Final = "X-Remote-Group"
EXTRA_PREFIX: Final = "X-Remote-Extra-"
_WATCH: Final = "watch"
_DIGEST: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")
_VERBS: Final[Mapping[str, str]] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class RemoteService(msgspec.Struct, frozen=True):
    """Who serves a group and version, from an APIService."""

    name: str
    group: str
    version: str
    host: str
    port: int
    ca_bundle: bytes = b""
    group_priority: int = 0
    version_priority: int = 0
    is_trusted: bool = False  # whether its resourceIDs mean the sets of this control plane

    @property
    def api_version(self) -> str:
        """As in `apiVersion`."""
        return f"{self.group}/{self.version}"

    @property
    def address(self) -> str:
        """Its address, as its certificate names it."""
        return f"https://{self.host}:{self.port}"


class RemoteVersion(msgspec.Struct, frozen=True):
    """A group and version of another server, and its resources as it last said them."""

    service: RemoteService
    resources: tuple[Json, ...] = ()
    problem: str = ""  # why it is not available; empty where it is
    openapi_digest: str = ""  # the hash under which its OpenAPI v3 is found; empty where it has none

    @property
    def is_available(self) -> bool:
        """Whether it answers."""
        return not self.problem


def remote_service(resource: Resource) -> RemoteService | None:
    """The server of a stored APIService; None where it names none that could be called."""
    spec = as_map(apiregistration.API_SERVICE.clean(resource.spec))
    service = as_map(spec.get("service"))
    group, version = spec.get("group"), spec.get("version")
    name, namespace, port = service.get("name"), service.get("namespace"), service.get("port")
    if not (group and version and name and namespace and isinstance(port, int)):
        return None
    return RemoteService(
        name=resource.name,
        group=group,
        version=version,
        host=f"{name}.{namespace}.svc",
        port=port,
        ca_bundle=_decoded(spec.get("caBundle")),
        group_priority=spec.get("groupPriorityMinimum") or 0,
        version_priority=spec.get("versionPriority") or 0,
        is_trusted=resource.annotations.get(TRUST_ANNOTATION) == "true",
    )


def _decoded(text: Json) -> bytes:
    try:
        return base64.b64decode(text or "")
    except (binascii.Error, ValueError, TypeError):
        return b""


def listed(document: Json, service: RemoteService) -> tuple[Json, ...]:
    """The resources in the APIResourceList of a server; ValueError says what is wrong with it."""
    found = as_map(document)
    if found.get("kind") != "APIResourceList" or not isinstance(found.get("resources"), list):
        raise ValueError("it answers with something else than an APIResourceList")
    if found.get("groupVersion") != service.api_version:
        said = str(found.get("groupVersion"))[:100]
        raise ValueError(f"it answers for {said}, and not for {service.api_version}")
    resources = tuple(each for each in found["resources"] if as_map(each).get("name"))
    if len(resources) != len(found["resources"]):
        raise ValueError("a resource in its APIResourceList has no name")
    return resources


def openapi_digest(index: Json, service: RemoteService) -> str:
    """The hash of a group and version in a server's index of OpenAPI v3; empty where it has none."""
    entry = as_map(as_map(as_map(index).get("paths")).get(f"apis/{service.api_version}"))
    _, _, digest = str(entry.get("serverRelativeURL") or "").partition("?hash=")
    return digest if _DIGEST.fullmatch(digest) else ""


def trusted_ids(remotes: Iterable[RemoteVersion]) -> dict[tuple[str, str], str]:
    """The ids of the sets that trusted servers serve, by plural and group."""
    return {
        (resource["name"], remote.service.group): str(resource["resourceID"])
        for remote in remotes
        if remote.service.is_trusted
        for resource in remote.resources
        if resource.get("resourceID")
    }


def merged_groups(
    local: Mapping[str, tuple[str, ...]], remotes: Iterable[RemoteVersion]
) -> dict[str, tuple[str, ...]]:
    """Each group's versions, ours first, then those of others by their priorities."""
    merged = dict(local)
    ordered = sorted(remotes, key=lambda r: (-r.service.group_priority, r.service.group))
    for remote in ordered:
        group = remote.service.group
        versions = [r.service for r in ordered if r.service.group == group]
        versions.sort(key=lambda service: (-service.version_priority, service.version))
        mine = local.get(group, ())
        merged[group] = (*mine, *(s.version for s in versions if s.version not in mine))
    return merged


def discovered(remote: RemoteVersion) -> Json:
    """A version in the aggregated form of discovery; what is not available is stale and lists nothing."""
    freshness = "Current" if remote.is_available else "Stale"
    resources = list(_discovered_resources(remote)) if remote.is_available else []
    return {"version": remote.service.version, "freshness": freshness, "resources": resources}


def _discovered_resources(remote: RemoteVersion) -> Iterator[Json]:
    wholes = [each for each in remote.resources if "/" not in each["name"]]
    for whole in wholes:
        below = f"{whole['name']}/"
        parts = [each for each in remote.resources if each["name"].startswith(below)]
        shown = {
            "resource": whole["name"],
            "responseKind": _kind(whole, remote.service),
            "scope": "Namespaced" if whole.get("namespaced") else "Cluster",
            "singularResource": whole.get("singularName") or "",
            "verbs": whole.get("verbs") or [],
            "subresources": [
                {
                    "subresource": part["name"].removeprefix(below),
                    "responseKind": _kind(part, remote.service),
                    "verbs": part.get("verbs") or [],
                }
                for part in parts
            ],
        }
        copied = ("shortNames", "categories", "storageVersionHash", "resourceID")
        yield {key: value for key, value in shown.items() if value != []} | {
            name: whole[name] for name in copied if whole.get(name)
        }


def _kind(resource: Json, service: RemoteService) -> Json:
    return {
        "group": resource.get("group") or service.group,
        "version": resource.get("version") or service.version,
        "kind": resource.get("kind") or "",
    }


def attempt(method: str, service: RemoteService, rest: Sequence[str], *, watches: bool) -> Attempt:
    """What a request to a remote resource attempts, as Kubernetes reads paths."""
    parts = list(rest)
    if parts and parts[0] == _WATCH:  # the deprecated form of ?watch=true
        parts, watches = parts[1:], True
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":  # noqa: PLR2004 - namespaces/{namespace}/{plural}
        namespace, parts = parts[1], parts[2:]
    resource, name, *below = (*parts, "", "")[: max(len(parts), 2)]
    subresource = "/".join(below)
    if method in ("GET", "HEAD"):
        verb = "watch" if watches else "get" if name else "list"
    else:
        verb = _VERBS.get(method, method.lower())
    if verb == "delete" and not name:
        verb = "deletecollection"
    return Attempt(verb, resource, name, group=service.group, namespace=namespace, subresource=subresource)
