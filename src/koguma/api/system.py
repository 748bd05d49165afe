"""System endpoints: what this control plane is, what it serves, and objects by KRI."""

from typing import Final

from aiohttp import web

from koguma.access.authorizer import Attempt
from koguma.api import at
from koguma.api.call import Call, answer_json
from koguma.api.plain import PlainObjects
from koguma.application.context import Context
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import Forbidden, NotFound
from koguma.model.kind import Kind
from koguma.model.schema import Json

# kumactl compares versions, and accepts any product with a preview version without a warning.
_KUMA_VERSION: Final = "2.13.10"


class System:
    """Handlers of the endpoints that are not objects."""

    def __init__(self, context: Context, objects: PlainObjects, *, resource_ids: bool = True) -> None:
        self._context = context
        self._objects = objects
        self._resource_ids = resource_ids

    async def index(self, _call: Call) -> web.StreamResponse:
        """Product, version and instance, as Kuma's clients expect them."""
        about = self._context.about
        return answer_json(
            {
                "product": "Koguma",
                "version": f"0.0.0-preview.koguma-{about.version}",
                "kogumaVersion": about.version,
                "basedOnKuma": _KUMA_VERSION,
                "hostname": about.hostname,
                "instanceId": about.instance_id,
                "clusterId": about.cluster_id(),
                "mode": self._context.control_plane.mode.value,
                "gui": "",
            }
        )

    async def config(self, call: Call) -> web.StreamResponse:
        """The effective settings, secrets masked."""
        refusal = f'user "{call.user}" cannot access control-plane metadata'
        self._context.access.check(call.user, Attempt("get", path="/config"), refusal)
        return answer_json(self._context.about.settings())

    async def who_am_i(self, call: Call) -> web.StreamResponse:
        """The user of this request."""
        return answer_json({"name": call.user.name, "groups": call.user.groups})

    async def policies(self, call: Call) -> web.StreamResponse:
        """All policy kinds."""
        self._context.access.check(call.user, Attempt("get", path="/policies"))
        policies = [self._policy(kind) for kind in self._context.kinds if kind.policy is not None]
        return answer_json({"policies": policies})

    async def resources(self, call: Call) -> web.StreamResponse:
        """All kinds, with what a client needs to find and address their objects."""
        self._context.access.check(call.user, Attempt("get", path="/_resources"))
        custom = [self._custom(*each) for each in self._custom_versions().items()]
        described: dict[str, Json] = {"resources": [self._kind(kind) for kind in self._context.kinds]}
        return answer_json({**described, "customResources": custom} if custom else described)

    def _custom_versions(self) -> dict[str, list[KubeEndpoint]]:
        """The endpoints of the custom resources that are served now, by resourceID."""
        found: dict[str, list[KubeEndpoint]] = {}
        for endpoint in self._context.catalog.registry:
            if endpoint.custom is not None:
                found.setdefault(endpoint.set.id, []).append(endpoint)
        return found

    def _custom(self, resource_id: str, endpoints: list[KubeEndpoint]) -> Json:
        """A custom resource; it has paths in the Kubernetes form alone."""
        kind = endpoints[0].kind
        return {
            "name": kind.name,
            "group": kind.group,
            "namespaced": kind.namespaced,
            "paths": [f"/apis/{endpoint.api_version}/{endpoint.plural}" for endpoint in endpoints],
            **({"resourceID": resource_id} if self._resource_ids else {}),
        }

    async def by_kri(self, call: Call, kri: str) -> web.StreamResponse:
        """The object of a KRI, whatever its origin; the section is ignored."""
        kind, key, _ = self._context.parse_kri(kri)
        context = await at.context_of(call, self._context, kind)
        resource = context.state.get(key)
        try:
            context.check(call.user, "get", kind, key.mesh, resource.core_name if resource else key.name)
        except Forbidden:  # in the same words whether there is such an object: its core name has a hash
            context.check(call.user, "get", kind, key.mesh, key.name)
            raise
        if resource is None:
            raise NotFound
        return self._objects.show(call, resource)

    def _policy(self, kind: Kind) -> Json:
        singular, plural = kind.display_names
        assert kind.policy is not None
        return {
            "name": kind.name,
            "readOnly": kind.read_only_at(self._context.control_plane),
            "path": kind.path,
            "singularDisplayName": singular,
            "pluralDisplayName": plural,
            "isExperimental": False,
            "isTargetRefBased": True,
            "isInbound": kind.policy.has_from,
            "isOutbound": kind.policy.has_to,
        }

    def _kind(self, kind: Kind) -> Json:
        singular, plural = kind.display_names
        described: dict[str, Json] = {
            "name": kind.name,
            "scope": kind.scope.value,
            "path": kind.path,
            "shortName": kind.short,
            "readOnly": kind.read_only_at(self._context.control_plane),
            "singularDisplayName": singular,
            "pluralDisplayName": plural,
            "includeInFederation": kind.sync.global_to_zones and not kind.read_only,
        }
        if self._resource_ids:
            described["resourceID"] = kind.resource_id
        if kind.aliases:
            described["aliases"] = list(kind.aliases)
        if kind.policy is not None:
            described["policy"] = {
                "isTargetRef": True,
                "hasToTargetRef": kind.policy.has_to,
                "hasFromTargetRef": kind.policy.has_from,
                "hasRulesTargetRef": kind.policy.has_rules,
                "isFromAsRules": kind.policy.from_as_rules,
                "isActive": kind.policy.acts,
            }
        return described
