"""Webhook configurations: servers that are asked before an object is stored, and may change or refuse it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from koguma.kube import field_errors, match_conditions
from koguma.kube.kinds import parts, rbac
from koguma.kube.kinds.webhook_types import (
    MatchCondition,
    MutatingWebhook,
    MutatingWebhookConfigurationSpec,
    RuleWithOperations,
    ValidatingWebhook,
    ValidatingWebhookConfigurationSpec,
    WebhookClientConfig,
    WebhookServiceReference,
)
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json
from koguma.model.violation import Violation, child, item

GROUP: Final = "admissionregistration.k8s.io"
OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT", "*")
REVIEW_VERSION: Final = "v1"
TIMEOUT_SECONDS: Final = 10
_TIMEOUT_SECONDS_MAX: Final = 30
_SCOPES: Final = ("Cluster", "Namespaced", "*")
_POLICIES: Final = ("Fail", "Ignore")
_MATCH_POLICIES: Final = ("Equivalent", "Exact")
_SIDE_EFFECTS: Final = ("None", "NoneOnDryRun")
_REINVOCATIONS: Final = ("IfNeeded", "Never")
_CONDITIONS_MAX: Final = 64
_WEBHOOKS_MAX: Final = 100
_PORT_MAX: Final = 65535
_NAME_SEGMENTS_MIN: Final = 3
_PATH: Final = re.compile(r"(/[a-z0-9A-Z._~-]+)*/?")


def _defaults(*, mutating: bool) -> Mapping[str, Json]:
    common = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": TIMEOUT_SECONDS,
    }
    return {**common, "reinvocationPolicy": "Never"} if mutating else common


def _clean(spec: Json, *, mutating: bool) -> Json:
    """Defaults where nothing is said, as Kubernetes stores them."""
    read = parts.without_nulls(spec)
    defaults = _defaults(mutating=mutating)
    return parts.changed(
        read, {"webhooks": lambda hooks: _each(hooks, lambda hook: _with_defaults(hook, defaults))}
    )


def _with_defaults(hook: Mapping[str, Json], defaults: Mapping[str, Json]) -> Json:
    with_scopes = parts.changed(
        {**defaults, **hook}, {"rules": lambda rules: _each(rules, lambda rule: {"scope": "*", **rule})}
    )
    config = hook.get("clientConfig")
    if isinstance(config, dict) and isinstance(config.get("service"), dict):
        with_scopes["clientConfig"] = {**config, "service": {"port": 443, **config["service"]}}
    return with_scopes


def _each(values: Json, change: Callable[[Mapping[str, Json]], Json]) -> Json:
    if not isinstance(values, list):
        return values
    return [change(value) if isinstance(value, dict) else value for value in values]


def validate(
    spec: ValidatingWebhookConfigurationSpec | MutatingWebhookConfigurationSpec, _context: ValidationContext
) -> Iterator[Violation]:
    """What Kubernetes refuses, and more webhooks than anybody needs."""
    hooks: tuple[ValidatingWebhook, ...] = spec.webhooks or ()
    if len(hooks) > _WEBHOOKS_MAX:
        yield field_errors.invalid(
            "webhooks", len(hooks), f"must have at most {_WEBHOOKS_MAX} items", "length"
        )
        return
    names: set[str] = set()
    for index, hook in enumerate(hooks):
        at = item("webhooks", index)
        yield from _name_violations(hook.name or "", names, child(at, "name"))
        yield from _choice_violations(hook, at)
        yield from _client_violations(hook.client_config or WebhookClientConfig(), child(at, "clientConfig"))
        for number, rule in enumerate(hook.rules or ()):
            yield from _rule_violations(rule, item(child(at, "rules"), number))
        for name, selector in (
            ("namespaceSelector", hook.namespace_selector),
            ("objectSelector", hook.object_selector),
        ):
            if selector is not None:
                yield from rbac.selector_violations(selector, child(at, name))
        yield from _condition_violations(hook.match_conditions or (), child(at, "matchConditions"))


def _name_violations(name: str, names: set[str], at: str) -> Iterator[Violation]:
    if not name:
        yield field_errors.required(at)
        return
    messages = list(parts.subdomain_messages(name))
    if not messages and len(name.split(".")) < _NAME_SEGMENTS_MIN:
        messages = ["should be a domain with at least three segments separated by dots"]
    for message in messages:
        yield field_errors.invalid(at, name, message, "name")
    if name in names:
        yield Violation(at, f'Duplicate value: "{name}"', "duplicate")
    names.add(name)


def _choice_violations(hook: ValidatingWebhook, at: str) -> Iterator[Violation]:
    choices = [
        ("failurePolicy", hook.failure_policy, _POLICIES),
        ("matchPolicy", hook.match_policy, _MATCH_POLICIES),
        ("sideEffects", hook.side_effects, _SIDE_EFFECTS),
    ]
    if isinstance(hook, MutatingWebhook):
        choices.append(("reinvocationPolicy", hook.reinvocation_policy, _REINVOCATIONS))
    for name, value, supported in choices:
        if value is None:
            yield field_errors.required(child(at, name), f"must specify one of {', '.join(supported)}")
        elif value not in supported:
            yield field_errors.unsupported(child(at, name), value, supported)
    versions = hook.admission_review_versions or ()
    if not versions:
        text = f"must specify one of {REVIEW_VERSION}"
        yield field_errors.required(child(at, "admissionReviewVersions"), text)
    elif REVIEW_VERSION not in versions:
        text = f"must include at least one of {REVIEW_VERSION}"
        yield field_errors.invalid(child(at, "admissionReviewVersions"), list(versions), text)
    seconds = hook.timeout_seconds or 0
    if not 1 <= seconds <= _TIMEOUT_SECONDS_MAX:
        text = f"the timeout value must be between 1 and {_TIMEOUT_SECONDS_MAX} seconds"
        yield field_errors.invalid(child(at, "timeoutSeconds"), seconds, text, "range")


def _client_violations(config: WebhookClientConfig, at: str) -> Iterator[Violation]:
    if (config.url is None) == (config.service is None):
        yield field_errors.required(at, "exactly one of url or service is required")
    elif config.url is not None:
        for message in _url_messages(config.url):
            yield field_errors.invalid(child(at, "url"), config.url, message, "url")
    elif config.service is not None:
        yield from _service_violations(config.service, child(at, "service"))
    if config.ca_bundle and b"-----BEGIN CERTIFICATE-----" not in (parts.payload(config.ca_bundle) or b""):
        text = "unable to load root certificates: unable to parse bytes as PEM block"
        yield field_errors.invalid(child(at, "caBundle"), "<omitted>", text, "pem")


def _url_messages(url: str) -> Iterator[str]:
    form = "; desired format: https://host[/path]"
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError:
        yield f"url must be a valid URL{form}"
        return
    if split.scheme != "https":
        yield f"'https' is the only allowed URL scheme{form}"
    if not split.hostname:
        yield f"host must be specified{form}"
    if split.username is not None:
        yield "user information is not permitted in the URL"
    if split.fragment or "#" in url:
        yield "fragments are not permitted in the URL"
    if split.query or "?" in url:
        yield "query parameters are not permitted in the URL"


def _service_violations(service: WebhookServiceReference, at: str) -> Iterator[Violation]:
    for name, value in (("name", service.name), ("namespace", service.namespace)):
        if not value:
            yield field_errors.required(child(at, name), f"service {name} is required")
        else:
            for message in parts.label_messages(value):
                yield field_errors.invalid(child(at, name), value, message, "name")
    port = service.port or 0
    if not 0 < port <= _PORT_MAX:
        yield field_errors.invalid(child(at, "port"), port, f"must be between 1 and {_PORT_MAX}, inclusive")
    if service.path and not _PATH.fullmatch(service.path):
        yield field_errors.invalid(child(at, "path"), service.path, "must be a path that begins with '/'")


def _rule_violations(rule: RuleWithOperations, at: str) -> Iterator[Violation]:
    for name, values in (
        ("operations", rule.operations),
        ("apiGroups", rule.api_groups),
        ("apiVersions", rule.api_versions),
        ("resources", rule.resources),
    ):
        place = child(at, name)
        if not values:
            yield field_errors.required(place)
        elif name != "resources" and len(values) > 1 and "*" in values:
            text = "if '*' is present, must not specify other values"
            yield field_errors.invalid(place, list(values), text)
    for index, operation in enumerate(rule.operations or ()):
        if operation not in OPERATIONS:
            yield field_errors.unsupported(item(child(at, "operations"), index), operation, OPERATIONS)
    for index, version in enumerate(rule.api_versions or ()):
        if not version:
            yield field_errors.required(item(child(at, "apiVersions"), index))
    yield from _resource_violations(rule.resources or (), child(at, "resources"))
    if rule.scope is not None and rule.scope not in _SCOPES:
        yield field_errors.unsupported(child(at, "scope"), rule.scope, _SCOPES)


def _resource_violations(resources: Iterable[str], at: str) -> Iterator[Violation]:
    listed = list(resources)
    if "*/*" in listed and len(listed) > 1:
        yield field_errors.invalid(at, listed, "if '*/*' is present, must not specify other resources")
    for index, resource in enumerate(listed):
        if not resource:
            yield field_errors.required(item(at, index))


def _condition_violations(conditions: Iterable[MatchCondition], at: str) -> Iterator[Violation]:
    listed = list(conditions)
    if len(listed) > _CONDITIONS_MAX:
        yield field_errors.invalid(at, len(listed), f"must have at most {_CONDITIONS_MAX} items", "length")
        return
    names: set[str] = set()
    for index, condition in enumerate(listed):
        place = item(at, index)
        name, expression = condition.name or "", condition.expression or ""
        if not name:
            yield field_errors.required(child(place, "name"))
        else:
            for message in parts.qualified_name_messages(name):
                yield field_errors.invalid(child(place, "name"), name, message, "name")
        if name in names:
            yield Violation(child(place, "name"), f'Duplicate value: "{name}"', "duplicate")
        names.add(name)
        yield from _expression_violations(expression, child(place, "expression"))


def _expression_violations(expression: str, at: str) -> Iterator[Violation]:
    if not expression.strip():
        yield field_errors.required(at)
        return
    try:
        match_conditions.compiled(expression)
    except match_conditions.CelError as error:
        yield field_errors.invalid(at, expression, f"compilation failed: {error}", "cel")


def _count(spec: Json, _status: Json) -> int:
    return len(spec.get("webhooks") or ())


_COLUMNS: Final = (Column("Webhooks", _count, "How many servers it names."),)

VALIDATING = Kind(
    name="ValidatingWebhookConfiguration",
    plural="validatingwebhookconfigurations",
    set_name=f"ValidatingWebhookConfiguration.{GROUP}",
    group=GROUP,
    doc="Servers that are asked before an object is stored, and may refuse it.",
    spec=ValidatingWebhookConfigurationSpec,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    at_root=True,
    clean=lambda spec: _clean(spec, mutating=False),
    validate=validate,
    columns=_COLUMNS,
)

MUTATING = Kind(
    name="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    set_name=f"MutatingWebhookConfiguration.{GROUP}",
    group=GROUP,
    doc="Servers that are asked before an object is stored, and may change or refuse it.",
    spec=MutatingWebhookConfigurationSpec,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    at_root=True,
    clean=lambda spec: _clean(spec, mutating=True),
    validate=validate,
    columns=_COLUMNS,
)
