"""Kubernetes' own kinds, as far as a control plane needs them: what tools store, and what they ask."""

from collections.abc import Mapping
from typing import Final

from koguma.kube.kinds import (
    apiregistration,
    coordination,
    core,
    custom_definitions,
    events,
    gateway_api,
    quota,
    rbac,
    reviews,
    services,
    webhooks,
)
from koguma.model.kind import Kind

NATIVE_KINDS: Final[tuple[Kind, ...]] = (
    core.NAMESPACE,
    core.CONFIG_MAP,
    core.SECRET,
    core.SERVICE_ACCOUNT,
    quota.RESOURCE_QUOTA,
    webhooks.MUTATING,
    webhooks.VALIDATING,
    events.EVENT,
    coordination.LEASE,
    rbac.ROLE,
    rbac.CLUSTER_ROLE,
    rbac.ROLE_BINDING,
    rbac.CLUSTER_ROLE_BINDING,
    apiregistration.API_SERVICE,
    custom_definitions.DEFINITION,
    *gateway_api.KINDS,
)

# Reviews, which are answered and not stored, by kind: their storage sets have no Kind, so it is listed here.
REVIEW_KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        reviews.TOKEN,
        reviews.SELF,
        reviews.SUBJECT_ACCESS,
        reviews.SELF_ACCESS,
        reviews.LOCAL_ACCESS,
        reviews.SELF_RULES,
    )
}

# The kinds of endpoints in another version than the storage version, by `apiVersion` and `kind`.
ALIAS_KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    ("events.k8s.io/v1", "Event"): events.NEWER,
    ("v1", "Service"): services.SERVICE,
}
