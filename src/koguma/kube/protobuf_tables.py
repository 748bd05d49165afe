"""Protobuf tables: the field numbers of Kubernetes' own kinds, and how each field stands in JSON.

The numbers are those that the published API has promised to keep (`generated.proto` of k8s.io/api and
k8s.io/apimachinery). A table says no more than a reader of request bodies needs: the JSON name of a number,
what its bytes mean, and whether an empty value is written or left out.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeAlias, Union

import msgspec


class Plain(Enum):
    """What a value's bytes mean, where it is no message with fields of its own in JSON."""

    TEXT = auto()
    BOOL = auto()
    INT32 = auto()
    INT64 = auto()
    RAW = auto()  # bytes as they are; only the envelope has them
    BYTES = auto()  # base64 text in JSON
    TEXTS = auto()  # a message around a list of texts, which is only the list in JSON
    TIME = auto()  # to the second
    MICRO_TIME = auto()
    INT_OR_STRING = auto()
    JSON = auto()  # a message around JSON text


class Shape(Enum):
    """How often a field stands, and what becomes of an empty value."""

    ONE = auto()  # left out when empty: Kubernetes' clients write empty text for what nobody set
    KEPT = auto()  # also an empty value says something
    MANY = auto()
    MAP = auto()


class Field(msgspec.Struct, frozen=True):
    """One field of a message."""

    name: str
    type: Union[Plain, "Message"] = Plain.TEXT
    shape: Shape = Shape.ONE


Message: TypeAlias = Mapping[int, Field]  # by field number

_KEPT, _MANY, _MAP = Shape.KEPT, Shape.MANY, Shape.MAP
_BOOL, _INT32, _INT64 = Plain.BOOL, Plain.INT32, Plain.INT64
_TIME, _MICRO_TIME = Plain.TIME, Plain.MICRO_TIME


def _kept(*names: str) -> dict[int, Field]:
    """Texts numbered from 1 that stand in JSON even when they are empty."""
    return {number: Field(name, shape=_KEPT) for number, name in enumerate(names, 1)}


def _texts(*names: str) -> dict[int, Field]:
    """Texts numbered from 1."""
    return {number: Field(name) for number, name in enumerate(names, 1)}


def _lists(*names: str) -> dict[int, Field]:
    """Lists of texts numbered from 1."""
    return {number: Field(name, shape=_MANY) for number, name in enumerate(names, 1)}


ENVELOPE: Final[Message] = {
    1: Field("typeMeta", _texts("apiVersion", "kind")),
    2: Field("raw", Plain.RAW),
    3: Field("contentEncoding"),
    4: Field("contentType"),
}

_OWNER_REFERENCE: Final[Message] = {
    1: Field("kind", shape=_KEPT),
    3: Field("name", shape=_KEPT),
    4: Field("uid", shape=_KEPT),
    5: Field("apiVersion", shape=_KEPT),
    6: Field("controller", _BOOL, _KEPT),
    7: Field("blockOwnerDeletion", _BOOL, _KEPT),
}
_MANAGED_FIELDS_ENTRY: Final[Message] = {
    **_texts("manager", "operation", "apiVersion"),
    4: Field("time", _TIME),
    6: Field("fieldsType"),
    7: Field("fieldsV1", Plain.JSON),
    8: Field("subresource"),
}
_META: Final = Field(
    "metadata",
    {
        **_texts("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"),
        7: Field("generation", _INT64),
        8: Field("creationTimestamp", _TIME),
        9: Field("deletionTimestamp", _TIME),
        10: Field("deletionGracePeriodSeconds", _INT64, _KEPT),
        11: Field("labels", shape=_MAP),
        12: Field("annotations", shape=_MAP),
        13: Field("ownerReferences", _OWNER_REFERENCE, _MANY),
        14: Field("finalizers", shape=_MANY),
        17: Field("managedFields", _MANAGED_FIELDS_ENTRY, _MANY),
    },
)
_LABEL_SELECTOR_REQUIREMENT: Final[Message] = {
    **_kept("key", "operator"),
    3: Field("values", shape=_MANY),
}
_LABEL_SELECTOR: Final[Message] = {
    1: Field("matchLabels", shape=_MAP),
    2: Field("matchExpressions", _LABEL_SELECTOR_REQUIREMENT, _MANY),
}
DELETE_OPTIONS: Final[Message] = {
    1: Field("gracePeriodSeconds", _INT64, _KEPT),
    2: Field("preconditions", _kept("uid", "resourceVersion")),
    3: Field("orphanDependents", _BOOL, _KEPT),
    4: Field("propagationPolicy", shape=_KEPT),
    5: Field("dryRun", shape=_MANY),
    6: Field("ignoreStoreReadErrorWithClusterBreakingPotential", _BOOL, _KEPT),
}

_OBJECT_REFERENCE: Final = _texts(
    "kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"
)
_NAMESPACE_CONDITION: Final[Message] = {
    **_kept("type", "status"),
    4: Field("lastTransitionTime", _TIME),
    5: Field("reason"),
    6: Field("message"),
}
_NAMESPACE: Final[Message] = {
    1: _META,
    2: Field("spec", _lists("finalizers")),
    3: Field("status", {1: Field("phase"), 2: Field("conditions", _NAMESPACE_CONDITION, _MANY)}),
}
_CONFIG_MAP: Final[Message] = {
    1: _META,
    2: Field("data", shape=_MAP),
    3: Field("binaryData", Plain.BYTES, _MAP),
    4: Field("immutable", _BOOL, _KEPT),
}
_SECRET: Final[Message] = {
    1: _META,
    2: Field("data", Plain.BYTES, _MAP),
    3: Field("type"),
    4: Field("stringData", shape=_MAP),
    5: Field("immutable", _BOOL, _KEPT),
}
_SERVICE_ACCOUNT: Final[Message] = {
    1: _META,
    2: Field("secrets", _OBJECT_REFERENCE, _MANY),
    3: Field("imagePullSecrets", _texts("name"), _MANY),
    4: Field("automountServiceAccountToken", _BOOL, _KEPT),
}

_EVENT_SOURCE: Final = _texts("component", "host")
_EVENT_SERIES: Final[Message] = {1: Field("count", _INT32), 2: Field("lastObservedTime", _MICRO_TIME)}
_CORE_EVENT: Final[Message] = {
    1: _META,
    2: Field("involvedObject", _OBJECT_REFERENCE),
    3: Field("reason"),
    4: Field("message"),
    5: Field("source", _EVENT_SOURCE),
    6: Field("firstTimestamp", _TIME),
    7: Field("lastTimestamp", _TIME),
    8: Field("count", _INT32),
    9: Field("type"),
    10: Field("eventTime", _MICRO_TIME),
    11: Field("series", _EVENT_SERIES),
    12: Field("action"),
    13: Field("related", _OBJECT_REFERENCE),
    14: Field("reportingComponent", shape=_KEPT),
    15: Field("reportingInstance", shape=_KEPT),
}
_EVENT: Final[Message] = {
    1: _META,
    2: Field("eventTime", _MICRO_TIME),
    3: Field("series", _EVENT_SERIES),
    4: Field("reportingController"),
    5: Field("reportingInstance"),
    6: Field("action"),
    7: Field("reason"),
    8: Field("regarding", _OBJECT_REFERENCE),
    9: Field("related", _OBJECT_REFERENCE),
    10: Field("note"),
    11: Field("type"),
    12: Field("deprecatedSource", _EVENT_SOURCE),
    13: Field("deprecatedFirstTimestamp", _TIME),
    14: Field("deprecatedLastTimestamp", _TIME),
    15: Field("deprecatedCount", _INT32),
}
_LEASE_SPEC: Final[Message] = {
    1: Field("holderIdentity", shape=_KEPT),
    2: Field("leaseDurationSeconds", _INT32, _KEPT),
    3: Field("acquireTime", _MICRO_TIME),
    4: Field("renewTime", _MICRO_TIME),
    5: Field("leaseTransitions", _INT32, _KEPT),
    6: Field("strategy", shape=_KEPT),
    7: Field("preferredHolder", shape=_KEPT),
}

_RULES: Final = Field(
    "rules", _lists("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), _MANY
)
_SUBJECT: Final[Message] = {
    1: Field("kind", shape=_KEPT),
    2: Field("apiGroup"),
    3: Field("name", shape=_KEPT),
    4: Field("namespace"),
}
_BINDING: Final[Message] = {
    1: _META,
    2: Field("subjects", _SUBJECT, _MANY),
    3: Field("roleRef", _kept("apiGroup", "kind", "name")),
}
_CLUSTER_ROLE: Final[Message] = {
    1: _META,
    2: _RULES,
    3: Field("aggregationRule", {1: Field("clusterRoleSelectors", _LABEL_SELECTOR, _MANY)}),
}

_EXTRA: Final = Field("extra", Plain.TEXTS, _MAP)
_SELECTOR_ATTRIBUTES: Final[Message] = {
    1: Field("rawSelector"),
    2: Field("requirements", _LABEL_SELECTOR_REQUIREMENT, _MANY),
}
_ACCESS_SPEC: Final[Message] = {
    1: Field(
        "resourceAttributes",
        {
            **_texts("namespace", "verb", "group", "version", "resource", "subresource", "name"),
            8: Field("fieldSelector", _SELECTOR_ATTRIBUTES),
            9: Field("labelSelector", _SELECTOR_ATTRIBUTES),
        },
    ),
    2: Field("nonResourceAttributes", _texts("path", "verb")),
}
_SUBJECT_ACCESS_SPEC: Final[Message] = {
    **_ACCESS_SPEC,
    3: Field("user"),
    4: Field("groups", shape=_MANY),
    5: _EXTRA,
    6: Field("uid"),
}
_ACCESS_STATUS: Final[Message] = {
    1: Field("allowed", _BOOL, _KEPT),
    2: Field("reason"),
    3: Field("evaluationError"),
    4: Field("denied", _BOOL),
}
_RULES_STATUS: Final[Message] = {
    1: Field("resourceRules", _lists("verbs", "apiGroups", "resources", "resourceNames"), _MANY),
    2: Field("nonResourceRules", _lists("verbs", "nonResourceURLs"), _MANY),
    3: Field("incomplete", _BOOL, _KEPT),
    4: Field("evaluationError"),
}
_USER_INFO: Final[Message] = {**_texts("username", "uid"), 3: Field("groups", shape=_MANY), 4: _EXTRA}
_TOKEN_REVIEW_STATUS: Final[Message] = {
    1: Field("authenticated", _BOOL),
    2: Field("user", _USER_INFO),
    3: Field("error"),
    4: Field("audiences", shape=_MANY),
}
_TOKEN_REQUEST_SPEC: Final[Message] = {
    1: Field("audiences", shape=_MANY),
    3: Field("boundObjectRef", _texts("kind", "apiVersion", "name", "uid")),
    4: Field("expirationSeconds", _INT64, _KEPT),
}


def _object(spec: Message, status: Message | None = None) -> Message:
    """A kind of the usual form: metadata, spec and perhaps status."""
    table = {1: _META, 2: Field("spec", spec)}
    return table if status is None else {**table, 3: Field("status", status)}


_SUBJECT_ACCESS_REVIEW: Final = _object(_SUBJECT_ACCESS_SPEC, _ACCESS_STATUS)
_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io/v1", "authorization.k8s.io/v1"
_RBAC = "rbac.authorization.k8s.io/v1"
KINDS: Final[Mapping[tuple[str, str], Message]] = {
    ("v1", "ConfigMap"): _CONFIG_MAP,
    ("v1", "Event"): _CORE_EVENT,
    ("v1", "Namespace"): _NAMESPACE,
    ("v1", "Secret"): _SECRET,
    ("v1", "ServiceAccount"): _SERVICE_ACCOUNT,
    (_AUTHENTICATION, "SelfSubjectReview"): {
        1: _META,
        2: Field("status", {1: Field("userInfo", _USER_INFO)}),
    },
    (_AUTHENTICATION, "TokenRequest"): _object(
        _TOKEN_REQUEST_SPEC,
        {1: Field("token", shape=_KEPT), 2: Field("expirationTimestamp", _TIME)},
    ),
    (_AUTHENTICATION, "TokenReview"): _object(
        {1: Field("token"), 2: Field("audiences", shape=_MANY)}, _TOKEN_REVIEW_STATUS
    ),
    (_AUTHORIZATION, "LocalSubjectAccessReview"): _SUBJECT_ACCESS_REVIEW,
    (_AUTHORIZATION, "SelfSubjectAccessReview"): _object(_ACCESS_SPEC, _ACCESS_STATUS),
    (_AUTHORIZATION, "SelfSubjectRulesReview"): _object(_texts("namespace"), _RULES_STATUS),
    (_AUTHORIZATION, "SubjectAccessReview"): _SUBJECT_ACCESS_REVIEW,
    ("coordination.k8s.io/v1", "Lease"): _object(_LEASE_SPEC),
    ("events.k8s.io/v1", "Event"): _EVENT,
    (_RBAC, "ClusterRole"): _CLUSTER_ROLE,
    (_RBAC, "ClusterRoleBinding"): _BINDING,
    (_RBAC, "Role"): {1: _META, 2: _RULES},
    (_RBAC, "RoleBinding"): _BINDING,
}
