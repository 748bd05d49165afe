"""A registry of all our kinds under both groups, and of a few kinds as Kubernetes has them."""

from typing import Annotated

import msgspec

from koguma.kinds import KINDS
from koguma.kube import namespaced_names
from koguma.kube.registry import ALL_VERBS, IDENTITY, READ_VERBS, KubeEndpoint, Registry, StorageSet
from koguma.kube.schemas import Schemas
from koguma.model.kind import Kind, Scope
from koguma.model.schema import Spec, doc
from koguma.policies import POLICIES

ALL_KINDS = tuple(sorted((*KINDS, *POLICIES), key=lambda kind: kind.name))


class Rule(Spec):
    """What may be done."""

    verbs: Annotated[tuple[str, ...], doc("The verbs.")]


class RoleSpec(Spec):
    """Rules by name."""

    rules: Annotated[
        tuple[Rule, ...],
        doc("The rules."),
        msgspec.Meta(
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["verbs"]}
        ),
    ] = ()


class SettingsSpec(Spec):
    """Texts by name."""

    data: Annotated[dict[str, str] | None, doc("Texts.")] = None


class SpaceSpec(Spec):
    """What holds it."""

    finalizers: Annotated[tuple[str, ...], doc("Who is not done.")] = ()


def native(name: str, plural: str, spec: type[Spec], **more) -> Kind:
    return Kind(
        name=name,
        plural=plural,
        spec=spec,
        doc=f"{name} as in Kubernetes.",
        set_name=f"{name}.native",
        scope=Scope.GLOBAL,
        **more,
    )


CONFIG_MAP = native("ConfigMap", "configmaps", SettingsSpec, group="", at_root=True)
ROLE = native("Role", "roles", RoleSpec, group="rbac.authorization.k8s.io", at_root=True)
NAMESPACE = native("Namespace", "namespaces", SpaceSpec, group="", status=SpaceSpec, namespaced=False)


def stored(kind: Kind, version: str, **more) -> KubeEndpoint:
    """The endpoint of a kind in the version that is stored."""
    api_version = f"{kind.group}/{version}" if kind.group else version
    return KubeEndpoint(
        group=kind.group,
        version=version,
        plural=kind.plural,
        set=StorageSet(kind.storage_prefix, api_version, kind.name, kind),
        namespaced=namespaced_names.is_namespaced(kind),
        **more,
    )


def ours(kind: Kind) -> tuple[KubeEndpoint, KubeEndpoint]:
    """The two endpoints of one of our kinds."""
    first = stored(
        kind,
        "v1alpha1",
        short_names=(kind.short,) if kind.short else (),
        subresources=("status",) if kind.status else (),
        verbs=READ_VERBS if kind.read_only else ALL_VERBS,
    )
    alias = msgspec.structs.replace(first, group="koguma.io", version="v1", converter=IDENTITY)
    return first, alias


REVIEW = KubeEndpoint(
    group="authorization.k8s.io",
    version="v1",
    plural="selfsubjectaccessreviews",
    set=StorageSet(
        "/registry/selfsubjectaccessreviews", "authorization.k8s.io/v1", "SelfSubjectAccessReview"
    ),
    namespaced=False,
    verbs=("create",),
)
NATIVE = (
    stored(CONFIG_MAP, "v1", short_names=("cm",), strategic=True),
    stored(ROLE, "v1", strategic=True),
    stored(NAMESPACE, "v1", short_names=("ns",), subresources=("finalize", "status"), strategic=True),
    REVIEW,
)
REGISTRY = Registry((*NATIVE, *(endpoint for kind in ALL_KINDS for endpoint in ours(kind))))
SCHEMAS = Schemas(REGISTRY)
