"""Endpoints: under which groups and versions each kind is served, and by which short words."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.kube import namespaced_names
from koguma.kube.custom import scale
from koguma.kube.custom.endpoints import SCALE
from koguma.kube.kinds import (
    NATIVE_KINDS,
    REVIEW_KINDS,
    core,
    events,
    gateway_api,
    reviews,
    services,
    workloads,
)
from koguma.kube.registry import (
    ALL_VERBS,
    COMPUTED_VERBS,
    IDENTITY,
    KOGUMA,
    KUMA,
    READ_VERBS,
    Converter,
    KubeEndpoint,
    StorageSet,
    View,
)
from koguma.model.forms import API_VERSION
from koguma.model.kind import Kind, Kinds

_SHORT_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "Namespace": ("ns",),
    "ConfigMap": ("cm",),
    "ServiceAccount": ("sa",),
    "Event": ("ev",),
    "CronJob": ("cj",),
    "DaemonSet": ("ds",),
    "Deployment": ("deploy",),
    "Endpoints": ("ep",),
    "Ingress": ("ing",),
    "Node": ("no",),
    "PersistentVolume": ("pv",),
    "PersistentVolumeClaim": ("pvc",),
    "Pod": ("po",),
    "ReplicaSet": ("rs",),
    "ReplicationController": ("rc",),
    "Service": ("svc",),
    "StatefulSet": ("sts",),
    "ResourceQuota": ("quota",),
    "CustomResourceDefinition": ("crd", "crds"),
}
# What `kubectl get all` shows, as in Kubernetes: what runs, and how it is called.
_IN_ALL: Final = frozenset(
    ("CronJob", "DaemonSet", "Deployment", "Job", "Pod", "ReplicaSet", "ReplicationController", "Service")
) | {"StatefulSet"}
_NO_COLLECTION: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
# The words for all kinds, and for all policies, by group: with one word for both, `kubectl get kuma` would
# show every object twice, and `kubectl delete kuma` would miss what it has just deleted.
_CATEGORIES: Final = {KUMA: ("kuma", "kuma-policies"), KOGUMA: ("koguma", "koguma-policies")}


TOKEN: Final = "token"  # noqa: S105 - the subresource of a service account that issues its tokens
_SUBRESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    core.NAMESPACE.stored_as: ("status", "finalize"),
    core.SERVICE_ACCOUNT.stored_as: (TOKEN,),
}


def native() -> tuple[KubeEndpoint, ...]:
    """Kubernetes' own kinds, and what is asked and not stored."""
    stored = tuple(_native(kind) for kind in NATIVE_KINDS if kind not in gateway_api.KINDS)
    gateways = (endpoint for kind in gateway_api.KINDS for endpoint in _gateway_api(kind))
    reviews = (_review(kind) for kind in REVIEW_KINDS.values())
    empty = (_empty(kind) for kind in workloads.EMPTY_KINDS)
    older = (_older(*each) for each in workloads.OLDER_VERSIONS)
    return (*stored, _newer_events(), *gateways, *reviews, *empty, *older)


def _native(kind: Kind) -> KubeEndpoint:
    is_namespace = kind == core.NAMESPACE
    return KubeEndpoint(
        group=kind.group,
        version="v1",
        plural=kind.plural,
        set=_native_set(kind),
        namespaced=kind.namespaced,
        verbs=_NO_COLLECTION if is_namespace else ALL_VERBS,
        short_names=_SHORT_NAMES.get(kind.name, ()),
        subresources=_SUBRESOURCES.get(kind.stored_as, ("status",) if kind.status else ()),
        strategic=True,
    )


def _gateway_api(kind: Kind) -> Iterator[KubeEndpoint]:
    """A kind of the Gateway API in all its versions; elsewhere it is a custom resource, and behaves so."""
    newest = msgspec.structs.replace(
        _native(kind),
        short_names=gateway_api.SHORT_NAMES.get(kind.name, ()),
        categories=(gateway_api.CATEGORY,),
        strategic=False,
    )
    yield newest
    for version in gateway_api.OLDER_VERSIONS.get(kind.name, ()):
        yield msgspec.structs.replace(newest, version=version, converter=IDENTITY)


def _newer_events() -> KubeEndpoint:
    return KubeEndpoint(
        group=events.NEWER.group,
        version="v1",
        plural=events.EVENT.plural,
        set=_native_set(events.EVENT),
        namespaced=True,
        short_names=_SHORT_NAMES["Event"],
        converter=events.CONVERTER,
        strategic=True,
    )


def _empty(kind: Kind) -> KubeEndpoint:
    return KubeEndpoint(
        group=kind.group,
        version="v1",
        plural=kind.plural,
        set=_native_set(kind),
        namespaced=kind.namespaced,
        verbs=READ_VERBS,
        short_names=_SHORT_NAMES.get(kind.name, ()),
        categories=("all",) if kind.name in _IN_ALL else (),
        strategic=True,
    )


def _older(group: str, version: str, kind: Kind) -> KubeEndpoint:
    newest = _empty(kind)
    return msgspec.structs.replace(
        newest, group=group, version=version, short_names=(), categories=(), converter=IDENTITY
    )


def _native_set(kind: Kind) -> StorageSet:
    version = f"{kind.group}/v1" if kind.group else "v1"
    return StorageSet(kind.storage_prefix, version, kind.name, kind)


def _review(kind: Kind) -> KubeEndpoint:
    return KubeEndpoint(
        group=kind.group,
        version="v1",
        plural=kind.plural,
        set=StorageSet(kind.storage_prefix, f"{kind.group}/v1", kind.name),
        namespaced=kind.namespaced,
        verbs=("create",),
    )


# Reached through a service account only, and so no endpoint of its own.
TOKEN_REQUEST: Final = _review(reviews.TOKEN_REQUEST)


# Scales are never asked for by themselves; this describes them.
_SCALES: Final = KubeEndpoint(
    group=scale.GROUP,
    version="v1",
    plural="scales",
    set=StorageSet("/registry/scales", scale.API_VERSION, scale.KIND),
    namespaced=True,
)
_PARTS: Final = {TOKEN: TOKEN_REQUEST, SCALE: _SCALES}


def part_endpoint(endpoint: KubeEndpoint, part: str) -> KubeEndpoint:
    """The endpoint that describes what is sent to a subresource: mostly the object itself."""
    return _PARTS.get(part, endpoint)


def ours(kinds: Kinds, convert: Callable[[Kind], Converter]) -> tuple[KubeEndpoint, ...]:
    """Every kind of ours, as `kuma.io/v1alpha1` and as `koguma.io/v1`; MeshServices also as Services."""
    served = tuple(endpoint for kind in kinds for endpoint in _ours(kind, convert(kind)))
    return (*served, *(_services(endpoint) for endpoint in served if _is_of_services(endpoint)))


def _is_of_services(endpoint: KubeEndpoint) -> bool:
    return (endpoint.group, endpoint.kind_name) == (KUMA, "MeshService")


def _services(stored: KubeEndpoint) -> KubeEndpoint:
    """The view of MeshServices as Kubernetes' Services: another endpoint of the same set."""
    kind = services.SERVICE
    return KubeEndpoint(
        group=kind.group,
        version="v1",
        plural=kind.plural,
        set=stored.set,
        namespaced=stored.namespaced,
        verbs=READ_VERBS,
        short_names=_SHORT_NAMES[kind.name],
        categories=("all",),
        view=View(kind, services.shown, f"it is a {stored.kind_name}: write {stored.qualified}"),
        strategic=True,
    )


def _ours(kind: Kind, converter: Converter) -> Iterator[KubeEndpoint]:
    stored = StorageSet(kind.storage_prefix, API_VERSION, kind.name, kind)
    for group, version, between in ((KUMA, "v1alpha1", None), (KOGUMA, "v1", converter)):
        yield KubeEndpoint(
            group=group,
            version=version,
            plural=kind.plural.replace("-", ""),  # as Kuma's own resources are called in Kubernetes
            set=stored,
            namespaced=namespaced_names.is_namespaced(kind),
            verbs=_verbs(kind),
            short_names=(kind.short,) if kind.short and between is None else (),  # one owner per word
            categories=_categories(group, kind),
            subresources=("status",) if kind.status is not None else (),
            converter=between,
        )


def _verbs(kind: Kind) -> tuple[str, ...]:
    if kind.computed is not None:
        return COMPUTED_VERBS
    return READ_VERBS if kind.read_only else ALL_VERBS


def _categories(group: str, kind: Kind) -> tuple[str, ...]:
    ours, policies = _CATEGORIES[group]
    return (ours, policies) if kind.policy else (ours,)
