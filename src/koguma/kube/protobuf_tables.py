"""Protobuf tables: the field numbers of Kubernetes' own kinds, and how each field stands in JSON.

The numbers are those that the published API has promised to keep (`generated.proto` of k8s.io/api and
k8s.io/apimachinery). A table says no more than a reader and a writer need: the JSON name of a number, what
its bytes mean, and whether an empty value is written or left out.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeAlias, Union

import msgspec


class ProtobufType(Enum):
    """What the bytes of a value mean, where it is no message with fields of its own in JSON."""

    STRING = auto()
    BOOL = auto()
    INT32 = auto()
    INT64 = auto()
    BYTES = auto()  # as they are; only the envelope has them
    BASE64 = auto()  # bytes, which JSON writes as base64
    STRING_LIST = auto()  # a message around a list of strings, which is only the list in JSON
    TIME = auto()  # to the second
    MICRO_TIME = auto()
    INT_OR_STRING = auto()
    QUANTITY = auto()  # a message around a text
    JSON = auto()  # a message around JSON text


class FieldLabel(Enum):
    """How often a field occurs, and what an empty value means: protobuf's cardinality and presence."""

    IMPLICIT = auto()  # left out when empty: Kubernetes' clients write empty text for what nobody set
    EXPLICIT = auto()  # an empty value was set by somebody, and is kept
    REPEATED = auto()
    MAP = auto()


class ProtobufField(msgspec.Struct, frozen=True):
    """One field of a message."""

    name: str
    type: Union[ProtobufType, "ProtobufMessage"] = ProtobufType.STRING
    label: FieldLabel = FieldLabel.IMPLICIT


ProtobufMessage: TypeAlias = Mapping[int, ProtobufField]  # by field number

_EXPLICIT, _REPEATED, _MAP = FieldLabel.EXPLICIT, FieldLabel.REPEATED, FieldLabel.MAP
_BOOL, _INT32, _INT64 = ProtobufType.BOOL, ProtobufType.INT32, ProtobufType.INT64
_TIME, _MICRO_TIME = ProtobufType.TIME, ProtobufType.MICRO_TIME


def _explicit_strings(*names: str) -> dict[int, ProtobufField]:
    """Strings numbered from 1 that JSON has even when they are empty."""
    return {number: ProtobufField(name, label=_EXPLICIT) for number, name in enumerate(names, 1)}


def _strings(*names: str) -> dict[int, ProtobufField]:
    """Strings numbered from 1."""
    return {number: ProtobufField(name) for number, name in enumerate(names, 1)}


def _string_lists(*names: str) -> dict[int, ProtobufField]:
    """Lists of strings numbered from 1."""
    return {number: ProtobufField(name, label=_REPEATED) for number, name in enumerate(names, 1)}


ENVELOPE: Final[ProtobufMessage] = {
    1: ProtobufField("typeMeta", _strings("apiVersion", "kind")),
    2: ProtobufField("raw", ProtobufType.BYTES),
    3: ProtobufField("contentEncoding"),
    4: ProtobufField("contentType"),
}

_OWNER_REFERENCE: Final[ProtobufMessage] = {
    1: ProtobufField("kind", label=_EXPLICIT),
    3: ProtobufField("name", label=_EXPLICIT),
    4: ProtobufField("uid", label=_EXPLICIT),
    5: ProtobufField("apiVersion", label=_EXPLICIT),
    6: ProtobufField("controller", _BOOL, _EXPLICIT),
    7: ProtobufField("blockOwnerDeletion", _BOOL, _EXPLICIT),
}
_MANAGED_FIELDS_ENTRY: Final[ProtobufMessage] = {
    **_strings("manager", "operation", "apiVersion"),
    4: ProtobufField("time", _TIME),
    6: ProtobufField("fieldsType"),
    7: ProtobufField("fieldsV1", ProtobufType.JSON),
    8: ProtobufField("subresource"),
}
_META: Final = ProtobufField(
    "metadata",
    {
        **_strings("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"),
        7: ProtobufField("generation", _INT64),
        8: ProtobufField("creationTimestamp", _TIME),
        9: ProtobufField("deletionTimestamp", _TIME),
        10: ProtobufField("deletionGracePeriodSeconds", _INT64, _EXPLICIT),
        11: ProtobufField("labels", label=_MAP),
        12: ProtobufField("annotations", label=_MAP),
        13: ProtobufField("ownerReferences", _OWNER_REFERENCE, _REPEATED),
        14: ProtobufField("finalizers", label=_REPEATED),
        17: ProtobufField("managedFields", _MANAGED_FIELDS_ENTRY, _REPEATED),
    },
)
_LABEL_SELECTOR_REQUIREMENT: Final[ProtobufMessage] = {
    **_explicit_strings("key", "operator"),
    3: ProtobufField("values", label=_REPEATED),
}
_LABEL_SELECTOR: Final[ProtobufMessage] = {
    1: ProtobufField("matchLabels", label=_MAP),
    2: ProtobufField("matchExpressions", _LABEL_SELECTOR_REQUIREMENT, _REPEATED),
}
DELETE_OPTIONS: Final[ProtobufMessage] = {
    1: ProtobufField("gracePeriodSeconds", _INT64, _EXPLICIT),
    2: ProtobufField("preconditions", _explicit_strings("uid", "resourceVersion")),
    3: ProtobufField("orphanDependents", _BOOL, _EXPLICIT),
    4: ProtobufField("propagationPolicy", label=_EXPLICIT),
    5: ProtobufField("dryRun", label=_REPEATED),
    6: ProtobufField("ignoreStoreReadErrorWithClusterBreakingPotential", _BOOL, _EXPLICIT),
}

_OBJECT_REFERENCE: Final = _strings(
    "kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"
)
_NAMESPACE_CONDITION: Final[ProtobufMessage] = {
    **_explicit_strings("type", "status"),
    4: ProtobufField("lastTransitionTime", _TIME),
    5: ProtobufField("reason"),
    6: ProtobufField("message"),
}
_NAMESPACE: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("spec", _string_lists("finalizers")),
    3: ProtobufField(
        "status", {1: ProtobufField("phase"), 2: ProtobufField("conditions", _NAMESPACE_CONDITION, _REPEATED)}
    ),
}
_CONFIG_MAP: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("data", label=_MAP),
    3: ProtobufField("binaryData", ProtobufType.BASE64, _MAP),
    4: ProtobufField("immutable", _BOOL, _EXPLICIT),
}
_SECRET: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("data", ProtobufType.BASE64, _MAP),
    3: ProtobufField("type"),
    4: ProtobufField("stringData", label=_MAP),
    5: ProtobufField("immutable", _BOOL, _EXPLICIT),
}
_SERVICE_ACCOUNT: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("secrets", _OBJECT_REFERENCE, _REPEATED),
    3: ProtobufField("imagePullSecrets", _strings("name"), _REPEATED),
    4: ProtobufField("automountServiceAccountToken", _BOOL, _EXPLICIT),
}

_EVENT_SOURCE: Final = _strings("component", "host")
_EVENT_SERIES: Final[ProtobufMessage] = {
    1: ProtobufField("count", _INT32),
    2: ProtobufField("lastObservedTime", _MICRO_TIME),
}
_CORE_EVENT: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("involvedObject", _OBJECT_REFERENCE),
    3: ProtobufField("reason"),
    4: ProtobufField("message"),
    5: ProtobufField("source", _EVENT_SOURCE),
    6: ProtobufField("firstTimestamp", _TIME),
    7: ProtobufField("lastTimestamp", _TIME),
    8: ProtobufField("count", _INT32),
    9: ProtobufField("type"),
    10: ProtobufField("eventTime", _MICRO_TIME),
    11: ProtobufField("series", _EVENT_SERIES),
    12: ProtobufField("action"),
    13: ProtobufField("related", _OBJECT_REFERENCE),
    14: ProtobufField("reportingComponent", label=_EXPLICIT),
    15: ProtobufField("reportingInstance", label=_EXPLICIT),
}
_EVENT: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("eventTime", _MICRO_TIME),
    3: ProtobufField("series", _EVENT_SERIES),
    4: ProtobufField("reportingController"),
    5: ProtobufField("reportingInstance"),
    6: ProtobufField("action"),
    7: ProtobufField("reason"),
    8: ProtobufField("regarding", _OBJECT_REFERENCE),
    9: ProtobufField("related", _OBJECT_REFERENCE),
    10: ProtobufField("note"),
    11: ProtobufField("type"),
    12: ProtobufField("deprecatedSource", _EVENT_SOURCE),
    13: ProtobufField("deprecatedFirstTimestamp", _TIME),
    14: ProtobufField("deprecatedLastTimestamp", _TIME),
    15: ProtobufField("deprecatedCount", _INT32),
}
_LEASE_SPEC: Final[ProtobufMessage] = {
    1: ProtobufField("holderIdentity", label=_EXPLICIT),
    2: ProtobufField("leaseDurationSeconds", _INT32, _EXPLICIT),
    3: ProtobufField("acquireTime", _MICRO_TIME),
    4: ProtobufField("renewTime", _MICRO_TIME),
    5: ProtobufField("leaseTransitions", _INT32, _EXPLICIT),
    6: ProtobufField("strategy", label=_EXPLICIT),
    7: ProtobufField("preferredHolder", label=_EXPLICIT),
}

_RULES: Final = ProtobufField(
    "rules", _string_lists("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), _REPEATED
)
_SUBJECT: Final[ProtobufMessage] = {
    1: ProtobufField("kind", label=_EXPLICIT),
    2: ProtobufField("apiGroup"),
    3: ProtobufField("name", label=_EXPLICIT),
    4: ProtobufField("namespace"),
}
_BINDING: Final[ProtobufMessage] = {
    1: _META,
    2: ProtobufField("subjects", _SUBJECT, _REPEATED),
    3: ProtobufField("roleRef", _explicit_strings("apiGroup", "kind", "name")),
}
_CLUSTER_ROLE: Final[ProtobufMessage] = {
    1: _META,
    2: _RULES,
    3: ProtobufField(
        "aggregationRule", {1: ProtobufField("clusterRoleSelectors", _LABEL_SELECTOR, _REPEATED)}
    ),
}

_EXTRA: Final = ProtobufField("extra", ProtobufType.STRING_LIST, _MAP)
_SELECTOR_ATTRIBUTES: Final[ProtobufMessage] = {
    1: ProtobufField("rawSelector"),
    2: ProtobufField("requirements", _LABEL_SELECTOR_REQUIREMENT, _REPEATED),
}
_ACCESS_SPEC: Final[ProtobufMessage] = {
    1: ProtobufField(
        "resourceAttributes",
        {
            **_strings("namespace", "verb", "group", "version", "resource", "subresource", "name"),
            8: ProtobufField("fieldSelector", _SELECTOR_ATTRIBUTES),
            9: ProtobufField("labelSelector", _SELECTOR_ATTRIBUTES),
        },
    ),
    2: ProtobufField("nonResourceAttributes", _strings("path", "verb")),
}
_SUBJECT_ACCESS_SPEC: Final[ProtobufMessage] = {
    **_ACCESS_SPEC,
    3: ProtobufField("user"),
    4: ProtobufField("groups", label=_REPEATED),
    5: _EXTRA,
    6: ProtobufField("uid"),
}
_ACCESS_STATUS: Final[ProtobufMessage] = {
    1: ProtobufField("allowed", _BOOL, _EXPLICIT),
    2: ProtobufField("reason"),
    3: ProtobufField("evaluationError"),
    4: ProtobufField("denied", _BOOL),
}
_RULES_STATUS: Final[ProtobufMessage] = {
    1: ProtobufField(
        "resourceRules", _string_lists("verbs", "apiGroups", "resources", "resourceNames"), _REPEATED
    ),
    2: ProtobufField("nonResourceRules", _string_lists("verbs", "nonResourceURLs"), _REPEATED),
    3: ProtobufField("incomplete", _BOOL, _EXPLICIT),
    4: ProtobufField("evaluationError"),
}
_USER_INFO: Final[ProtobufMessage] = {
    **_strings("username", "uid"),
    3: ProtobufField("groups", label=_REPEATED),
    4: _EXTRA,
}
_TOKEN_REVIEW_STATUS: Final[ProtobufMessage] = {
    1: ProtobufField("authenticated", _BOOL),
    2: ProtobufField("user", _USER_INFO),
    3: ProtobufField("error"),
    4: ProtobufField("audiences", label=_REPEATED),
}
_TOKEN_REQUEST_SPEC: Final[ProtobufMessage] = {
    1: ProtobufField("audiences", label=_REPEATED),
    3: ProtobufField("boundObjectRef", _strings("kind", "apiVersion", "name", "uid")),
    4: ProtobufField("expirationSeconds", _INT64, _EXPLICIT),
}


def _object(spec: ProtobufMessage, status: ProtobufMessage | None = None) -> ProtobufMessage:
    """A kind of the usual form: metadata, spec and perhaps status."""
    table = {1: _META, 2: ProtobufField("spec", spec)}
    return table if status is None else {**table, 3: ProtobufField("status", status)}


_RESOURCE_QUOTA: Final = _object(
    {
        1: ProtobufField("hard", ProtobufType.QUANTITY, _MAP),
        2: ProtobufField("scopes", label=_REPEATED),
        3: ProtobufField(
            "scopeSelector",
            {
                1: ProtobufField(
                    "matchExpressions",
                    {**_strings("scopeName", "operator"), 3: ProtobufField("values", label=_REPEATED)},
                    _REPEATED,
                )
            },
        ),
    },
    {
        1: ProtobufField("hard", ProtobufType.QUANTITY, _MAP),
        2: ProtobufField("used", ProtobufType.QUANTITY, _MAP),
    },
)
_SUBJECT_ACCESS_REVIEW: Final = _object(_SUBJECT_ACCESS_SPEC, _ACCESS_STATUS)
_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io/v1", "authorization.k8s.io/v1"
_RBAC = "rbac.authorization.k8s.io/v1"
KINDS: Final[Mapping[tuple[str, str], ProtobufMessage]] = {
    ("v1", "ConfigMap"): _CONFIG_MAP,
    ("v1", "Event"): _CORE_EVENT,
    ("v1", "Namespace"): _NAMESPACE,
    ("v1", "ResourceQuota"): _RESOURCE_QUOTA,
    ("v1", "Secret"): _SECRET,
    ("v1", "ServiceAccount"): _SERVICE_ACCOUNT,
    (_AUTHENTICATION, "SelfSubjectReview"): {
        1: _META,
        2: ProtobufField("status", {1: ProtobufField("userInfo", _USER_INFO)}),
    },
    (_AUTHENTICATION, "TokenRequest"): _object(
        _TOKEN_REQUEST_SPEC,
        {1: ProtobufField("token", label=_EXPLICIT), 2: ProtobufField("expirationTimestamp", _TIME)},
    ),
    (_AUTHENTICATION, "TokenReview"): _object(
        {1: ProtobufField("token"), 2: ProtobufField("audiences", label=_REPEATED)}, _TOKEN_REVIEW_STATUS
    ),
    (_AUTHORIZATION, "LocalSubjectAccessReview"): _SUBJECT_ACCESS_REVIEW,
    (_AUTHORIZATION, "SelfSubjectAccessReview"): _object(_ACCESS_SPEC, _ACCESS_STATUS),
    (_AUTHORIZATION, "SelfSubjectRulesReview"): _object(_strings("namespace"), _RULES_STATUS),
    (_AUTHORIZATION, "SubjectAccessReview"): _SUBJECT_ACCESS_REVIEW,
    ("coordination.k8s.io/v1", "Lease"): _object(_LEASE_SPEC),
    ("events.k8s.io/v1", "Event"): _EVENT,
    (_RBAC, "ClusterRole"): _CLUSTER_ROLE,
    (_RBAC, "ClusterRoleBinding"): _BINDING,
    (_RBAC, "Role"): {1: _META, 2: _RULES},
    (_RBAC, "RoleBinding"): _BINDING,
}

LIST_META: Final[ProtobufMessage] = {
    **_strings("selfLink", "resourceVersion", "continue"),
    4: ProtobufField("remainingItemCount", _INT64, _EXPLICIT),
}
_STATUS: Final[ProtobufMessage] = {
    1: ProtobufField("metadata", LIST_META),
    2: ProtobufField("status"),
    3: ProtobufField("message"),
    4: ProtobufField("reason"),
    5: ProtobufField(
        "details",
        {
            **_strings("name", "group", "kind"),
            4: ProtobufField("causes", _strings("reason", "message", "field"), _REPEATED),
            5: ProtobufField("retryAfterSeconds", _INT32),
            6: ProtobufField("uid"),
        },
    ),
    6: ProtobufField("code", _INT32),
}
_PARTIAL: Final[ProtobufMessage] = {1: _META}
_PARTIAL_LIST: Final[ProtobufMessage] = {
    1: ProtobufField("metadata", LIST_META),
    2: ProtobufField("items", _PARTIAL, _REPEATED),
}
# All that answers may have: the kinds that are read too, and what is only written.
MESSAGES: Final[Mapping[tuple[str, str], ProtobufMessage]] = {
    **KINDS,
    ("v1", "Status"): _STATUS,
    **{
        (f"meta.k8s.io/{version}", kind): table
        for version in ("v1", "v1beta1")
        for kind, table in (
            ("PartialObjectMetadata", _PARTIAL),
            ("PartialObjectMetadataList", _PARTIAL_LIST),
        )
    },
}
