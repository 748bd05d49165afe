"""The fields of webhook configurations."""

from typing import Annotated

from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Bytes, Int32
from koguma.kube.kinds.rbac import RoleSelector
from koguma.model.schema import Spec, doc


class WebhookServiceReference(Spec):
    """A server by the name that a Kubernetes service has: https://<name>.<namespace>.svc."""

    namespace: Annotated[str | None, doc("The namespace in its name.")] = None
    name: Annotated[str | None, doc("The first part of its name.")] = None
    path: Annotated[str | None, doc("The path that is called.")] = None
    port: Annotated[Int32 | None, doc("The port; 443 by default.")] = None


class WebhookClientConfig(Spec):
    """How a server is called; the operator must allow it (outgoingHosts)."""

    url: Annotated[str | None, doc("Its address, https://host:port/path.")] = None
    service: Annotated[WebhookServiceReference | None, doc("Its name as that of a Kubernetes service.")] = (
        None
    )
    ca_bundle: Annotated[
        Bytes | None, doc("CA certificates (PEM) that its certificate is verified with; else the system's.")
    ] = None


class RuleWithOperations(Spec):
    """Operations on resources."""

    operations: Annotated[tuple[str, ...] | None, doc("CREATE, UPDATE, DELETE, CONNECT or *.")] = None
    api_groups: Annotated[tuple[str, ...] | None, doc("Groups; empty text is the core group, * all.")] = None
    api_versions: Annotated[tuple[str, ...] | None, doc("Versions; * is all.")] = None
    resources: Annotated[
        tuple[str, ...] | None, doc("Resources by plural, also r/status, */status, r/*, * and */*.")
    ] = None
    scope: Annotated[str | None, doc("Cluster, Namespaced or *.")] = None


class MatchCondition(Spec):
    """A condition in CEL over object, oldObject and request."""

    name: Annotated[str | None, doc("Its name, in errors.")] = None
    expression: Annotated[str | None, doc("The expression, which must be true for a call.")] = None


class WebhookLabelSelector(RoleSelector):
    """Objects by their labels; all that is said must hold, and nothing selects all."""


class ValidatingWebhook(Spec):
    """One server, and when it is asked."""

    name: Annotated[str | None, doc("Its name, a domain of at least three parts.")] = None
    client_config: Annotated[WebhookClientConfig | None, doc("How it is called.")] = None
    rules: Annotated[tuple[RuleWithOperations, ...] | None, doc("What it is asked about.")] = None
    failure_policy: Annotated[str | None, doc("Fail or Ignore: what happens if it does not answer.")] = None
    match_policy: Annotated[
        str | None, doc("Equivalent: rules are about all endpoints of the same objects. Exact: as written.")
    ] = None
    namespace_selector: Annotated[
        WebhookLabelSelector | None, doc("Only objects in namespaces with these labels."), parts.ATOMIC
    ] = None
    object_selector: Annotated[
        WebhookLabelSelector | None, doc("Only objects with these labels, before or after."), parts.ATOMIC
    ] = None
    side_effects: Annotated[str | None, doc("None or NoneOnDryRun.")] = None
    timeout_seconds: Annotated[Int32 | None, doc("How long an answer may take, 1 to 30.")] = None
    admission_review_versions: Annotated[tuple[str, ...] | None, doc("Must have v1.")] = None
    match_conditions: Annotated[
        tuple[MatchCondition, ...] | None,
        doc("Conditions that must hold for a call."),
        parts.keyed_by("name"),
    ] = None


class MutatingWebhook(ValidatingWebhook):
    """One server that may change objects, and when it is asked."""

    reinvocation_policy: Annotated[
        str | None, doc("IfNeeded: asked once more where a later webhook changed the object. Or Never.")
    ] = None


class ValidatingWebhookConfigurationSpec(Spec):
    """Servers that may refuse objects."""

    webhooks: Annotated[tuple[ValidatingWebhook, ...] | None, doc("The servers."), parts.keyed_by("name")] = (
        None
    )


class MutatingWebhookConfigurationSpec(Spec):
    """Servers that may change or refuse objects."""

    webhooks: Annotated[tuple[MutatingWebhook, ...] | None, doc("The servers."), parts.keyed_by("name")] = (
        None
    )
