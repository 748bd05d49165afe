"""The roles and bindings that a new store begins with, under the names that Kubernetes' users expect.

Every group is named and every kind is listed, so that neither a new kind nor a new alias of one can be read
before a rule says so. Payloads of secrets are for `admin` and above; what signs the tokens of users, and the
tokens themselves, are for `cluster-admin` alone.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from koguma.kube.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, GROUP, USER_GROUP
from koguma.kube.registry import KOGUMA, KUMA
from koguma.model.access import ANY, REST_GROUP
from koguma.model.gateway_api.references import GROUP as GATEWAY_API
from koguma.model.kind import Kind
from koguma.model.schema import Json

API_VERSION: Final = f"{GROUP}/v1"
PUBLIC_PATHS: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
DISCOVERY_PATHS: Final = (
    "/_resources",
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/global-insight",
    "/global-insights",
    "/openapi*",
    "/policies",
    *PUBLIC_PATHS,
)
# What everybody may ask about himself: a group, and its requests.
SELF_REVIEWS: Final = (
    ("authentication.k8s.io", ("selfsubjectreviews",)),
    ("authorization.k8s.io", ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
)

# The right to let Envoys write files on the machines of proxies: a verb that is about no stored objects.
USE: Final = "use"
PROXY_FILES: Final = "proxyfiles"

# What the Envoys of proxies show: figures for everybody who may read proxies, whole configurations for
# administrators. They are served in the plain form alone.
_PROXIES: Final = ("dataplanes", "zoneegresses", "zoneingresses")
PROXY_FIGURES: Final = tuple(f"{proxies}/{page}" for proxies in _PROXIES for page in ("clusters", "stats"))
PROXY_DUMPS: Final = tuple(f"{proxies}/xds" for proxies in _PROXIES)

_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_OURS: Final = (KUMA, KOGUMA, REST_GROUP)
# The Gateway API's kinds that say how traffic flows; its classes are for whoever runs the control plane.
_ROUTED: Final = (
    "backendtlspolicies",
    "gateways",
    "grpcroutes",
    "httproutes",
    "listenersets",
    "tcproutes",
    "tlsroutes",
    "udproutes",
)
# Kubernetes' own kinds: which group, which of its resources.
_SEEN: Final = (
    ("", ("configmaps", "events", "namespaces", "resourcequotas", "serviceaccounts", "services")),
    ("", ("endpoints", "persistentvolumeclaims", "pods", "replicationcontrollers")),
    ("apps", ("daemonsets", "deployments", "replicasets", "statefulsets")),
    ("batch", ("cronjobs", "jobs")),
    ("extensions", ("ingresses",)),
    ("networking.k8s.io", ("ingresses",)),
    ("coordination.k8s.io", ("leases",)),
    ("events.k8s.io", ("events",)),
    (GATEWAY_API, ("gatewayclasses", "referencegrants", *_ROUTED)),
)
_EDITED: Final = (
    ("", ("configmaps", "events", "serviceaccounts")),
    ("coordination.k8s.io", ("leases",)),
    ("events.k8s.io", ("events",)),
    (GATEWAY_API, _ROUTED),
)
# A ReferenceGrant opens Secrets of its namespace to others, so that its writer must be able to read them.
_ADMINISTERED: Final = (
    ("", ("secrets",)),
    (GROUP, ("rolebindings", "roles")),
    (GATEWAY_API, ("referencegrants",)),
)

# What verifies tokens of service accounts: their issuer and its keys.
_ISSUER_DISCOVERY: Final = "system:service-account-issuer-discovery"
_ISSUER_PATHS: Final = ("/.well-known/openid-configuration", "/openid/v1/jwks")

_AGGREGATE: Final = f"{GROUP}/aggregate-to-"
_DEFAULTS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}


def default_roles(kinds: Iterable[Kind]) -> list[dict[str, Json]]:
    """The ClusterRoles for a control plane of these kinds, as documents."""
    everything = [_rule((ANY,), (ANY,), (ANY,)), _paths((ANY,), (ANY,))]
    reviews = [_rule(("create",), (group,), resources) for group, resources in SELF_REVIEWS]
    ours = tuple(kind for kind in kinds if kind.group == KUMA)
    return [
        _role("cluster-admin", everything),
        _gathering("admin"),
        _gathering("edit", to="admin"),
        _gathering("view", to="edit"),
        _role("system:aggregate-to-admin", list(_admin_rules(ours)), to="admin"),
        _role("system:aggregate-to-edit", list(_edit_rules(ours)), to="edit"),
        _role("system:aggregate-to-view", list(_view_rules(ours)), to="view"),
        _role("system:discovery", [_paths(("get",), DISCOVERY_PATHS)]),
        _role("system:public-info-viewer", [_paths(("get",), PUBLIC_PATHS)]),
        _role("system:basic-user", reviews),
        _role(_ISSUER_DISCOVERY, [_paths(("get",), _ISSUER_PATHS)]),
    ]


def default_bindings() -> list[dict[str, Json]]:
    """The ClusterRoleBindings that a new store begins with, as documents."""
    known = ("system:authenticated", "mesh-system:authenticated")
    return [
        _binding("cluster-admin", ("system:masters", "mesh-system:admin")),
        _binding("system:discovery", known),
        _binding("system:basic-user", known),
        _binding("system:public-info-viewer", (*known, "system:unauthenticated")),
        _binding(_ISSUER_DISCOVERY, ("system:serviceaccounts",)),
    ]


def _view_rules(kinds: tuple[Kind, ...]) -> Iterator[Json]:
    open_kinds = [kind for kind in kinds if not kind.admin_only]
    plurals = tuple(kind.plural for kind in open_kinds)
    statuses = tuple(f"{kind.plural}/status" for kind in open_kinds if kind.status is not None)
    yield from _for_ours(_READ, plurals)
    for group in (KUMA, KOGUMA):
        yield _rule(("get",), (group,), statuses)
    for group, resources in _SEEN:
        yield _rule(_READ, (group,), resources)
    yield _rule(("get",), (REST_GROUP,), PROXY_FIGURES)
    yield _paths(("get",), ("/config", "/metrics"))


def _edit_rules(kinds: tuple[Kind, ...]) -> Iterator[Json]:
    plurals = tuple(kind.plural for kind in kinds if not (kind.admin_only or kind.admin_written))
    yield from _for_ours(_WRITE, plurals)
    for group, resources in _EDITED:
        yield _rule(_WRITE, (group,), resources)


def _admin_rules(kinds: tuple[Kind, ...]) -> Iterator[Json]:
    """Secrets of meshes, but not the global ones: whoever has those can sign himself any user's token."""
    plurals = tuple(kind.plural for kind in kinds if kind.admin_only and kind.is_mesh_scoped)
    yield from _for_ours((*_READ, *_WRITE), plurals)
    written = tuple(kind.plural for kind in kinds if kind.admin_written and not kind.admin_only)
    yield from _for_ours(_WRITE, written)
    yield _rule((USE,), (KOGUMA,), (PROXY_FILES,))
    yield _rule(("get",), (REST_GROUP,), PROXY_DUMPS)
    # In Kubernetes `edit` has it, too. Whoever has it can be any service account of the namespace.
    yield _rule(("create",), ("",), ("serviceaccounts/token",))
    for group, resources in _ADMINISTERED:
        yield _rule((*_READ, *_WRITE), (group,), resources)


def retired_rules(kinds: Iterable[Kind]) -> list[Json]:
    """Rules that earlier versions gave to `edit`, and that are taken back where nobody has changed them."""
    plurals = tuple(kind.plural for kind in kinds if kind.group == KUMA and not kind.admin_only)
    return [_rule(_WRITE, (group,), plurals) for group in _OURS]


def _for_ours(verbs: tuple[str, ...], plurals: tuple[str, ...]) -> Iterator[Json]:
    """A rule for each of our groups; plurals have no hyphens in the Kubernetes form."""
    for group in _OURS:
        resources = plurals if group == REST_GROUP else tuple(each.replace("-", "") for each in plurals)
        yield _rule(verbs, (group,), resources)


def _rule(verbs: tuple[str, ...], groups: tuple[str, ...], resources: tuple[str, ...]) -> Json:
    return {"verbs": list(verbs), "apiGroups": list(groups), "resources": sorted(resources)}


def _paths(verbs: tuple[str, ...], paths: tuple[str, ...]) -> Json:
    return {"verbs": list(verbs), "nonResourceURLs": sorted(paths)}


def _role(name: str, rules: list[Json], to: str = "") -> dict[str, Json]:
    labels = _DEFAULTS | ({f"{_AGGREGATE}{to}": "true"} if to else {})
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": API_VERSION, "kind": CLUSTER_ROLE, "metadata": metadata, "rules": rules}


def _gathering(name: str, to: str = "") -> dict[str, Json]:
    """A role that is the sum of all that carry its label, so that plugins and people can add to it."""
    selector = {"matchLabels": {f"{_AGGREGATE}{name}": "true"}}
    return {**_role(name, [], to), "aggregationRule": {"clusterRoleSelectors": [selector]}}


def _binding(role: str, groups: tuple[str, ...]) -> dict[str, Json]:
    return {
        "apiVersion": API_VERSION,
        "kind": CLUSTER_ROLE_BINDING,
        "metadata": {"name": role, "labels": dict(_DEFAULTS)},
        "roleRef": {"apiGroup": GROUP, "kind": CLUSTER_ROLE, "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": USER_GROUP, "name": group} for group in groups],
    }
