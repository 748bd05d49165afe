"""Webhook rules: which webhooks a write concerns, and in which version each of them wants to see it.

A rule names endpoints. With `matchPolicy: Equivalent`, which is the default, it means the stored objects
behind them: a write through another endpoint of the same set concerns it too, and the object is converted to
the version that the rule names. So an endpoint that comes later leads past no rule.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.kube.kinds import parts, webhooks
from koguma.kube.registry import KubeEndpoint, Registry
from koguma.model import label_selector
from koguma.model.resource import Resource
from koguma.model.schema import UNKNOWN, Json

_ANY: Final = "*"
_KINDS: Final = {kind.stored_as: kind for kind in (webhooks.VALIDATING, webhooks.MUTATING)}


class WebhookRule(msgspec.Struct, frozen=True):
    """One rule."""

    operations: tuple[str, ...]
    groups: tuple[str, ...]
    versions: tuple[str, ...]
    resources: tuple[str, ...]
    scope: str

    def matches(self, operation: str, endpoint: KubeEndpoint, subresource: str, *, namespaced: bool) -> bool:
        """Whether it is about an operation at an endpoint."""
        return (
            _has(self.operations, operation)
            and _has(self.groups, endpoint.group)
            and _has(self.versions, endpoint.version)
            and self.scope in (_ANY, "Namespaced" if namespaced else "Cluster")
            and any(_is_resource(each, endpoint.plural, subresource) for each in self.resources)
        )


def _has(values: tuple[str, ...], value: str) -> bool:
    return _ANY in values or value in values


def _is_resource(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, part = pattern.partition("/")
    return resource in (_ANY, plural) and (part == subresource or (part == _ANY and "/" in pattern))


class Webhook(msgspec.Struct, frozen=True):
    """One webhook of a configuration."""

    configuration: str
    name: str
    url: str
    ca_bundle: bytes
    rules: tuple[WebhookRule, ...]
    ignores_failure: bool
    is_exact: bool
    namespace_selector: Json
    object_selector: Json
    timeout_seconds: int
    conditions: tuple[tuple[str, str], ...]  # name and expression
    is_reinvoked: bool

    def endpoint(
        self,
        operation: str,
        requested: KubeEndpoint,
        subresource: str,
        registry: Registry,
        *,
        namespaced: bool,
    ) -> KubeEndpoint | None:
        """The endpoint in whose version it wants to see a write; None where no rule is about it."""

        def is_matched(rule: WebhookRule, endpoint: KubeEndpoint) -> bool:
            return rule.matches(operation, endpoint, subresource, namespaced=namespaced)

        if any(is_matched(rule, requested) for rule in self.rules):
            return requested
        if self.is_exact:
            return None
        # A view shows objects as another kind, and nothing that is written leads back from it.
        others = [each for each in registry.over(requested.set) if each != requested and each.view is None]
        return next((each for rule in self.rules for each in others if is_matched(rule, each)), None)

    def selects(self, namespace_labels: Mapping[str, str] | None, objects: Iterable[Resource | None]) -> bool:
        """Whether its selectors fit; objects without a namespace (None) have no labels of one."""
        if namespace_labels is not None and not label_selector.selects(
            self.namespace_selector, namespace_labels
        ):
            return False
        return not self.object_selector or any(
            label_selector.selects(self.object_selector, each.labels) for each in objects if each is not None
        )


def webhooks_of(configuration: Resource) -> Iterator[Webhook]:
    """The webhooks of a stored configuration, in order; none of one that its kind cannot read.

    What is written is checked; only a restored backup may have one that is not.
    """
    if not is_readable(configuration):
        return
    for hook in parts.as_map(configuration.spec).get("webhooks") or ():
        config = hook.get("clientConfig") or {}
        yield Webhook(
            configuration=configuration.name,
            name=hook.get("name") or "",
            url=_url(config),
            ca_bundle=parts.payload(config.get("caBundle")) or b"",
            rules=tuple(map(_rule, hook.get("rules") or ())),
            ignores_failure=hook.get("failurePolicy") == "Ignore",
            is_exact=hook.get("matchPolicy") == "Exact",
            namespace_selector=hook.get("namespaceSelector") or {},
            object_selector=hook.get("objectSelector") or {},
            timeout_seconds=hook.get("timeoutSeconds") or webhooks.TIMEOUT_SECONDS,
            conditions=tuple(
                (each.get("name") or "", each.get("expression") or "")
                for each in hook.get("matchConditions") or ()
            ),
            is_reinvoked=hook.get("reinvocationPolicy") == "IfNeeded",
        )


def is_readable(configuration: Resource) -> bool:
    """Whether a stored configuration has the shape of its kind."""
    kind = _KINDS[configuration.kind]
    return all(violation.rule == UNKNOWN for violation in kind.checker(configuration.spec, ""))


def _rule(rule: Json) -> WebhookRule:
    return WebhookRule(
        tuple(rule.get("operations") or ()),
        tuple(rule.get("apiGroups") or ()),
        tuple(rule.get("apiVersions") or ()),
        tuple(rule.get("resources") or ()),
        rule.get("scope") or _ANY,
    )


def _url(config: Json) -> str:
    service = config.get("service")
    if not service:
        return config.get("url") or ""
    path = service.get("path") or "/"
    host = f"{service.get('name')}.{service.get('namespace')}.svc"
    return f"https://{host}:{service.get('port') or 443}/{path.removeprefix('/')}"
