"""Access rules: roles that allow, and bindings that say whom. Nothing here ever forbids."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final

import msgspec

from koguma.kube import field_errors
from koguma.kube.kinds import parts
from koguma.model import labels
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation, child, item

GROUP: Final = "rbac.authorization.k8s.io"
_NAMED_IN_GROUP: Final = ("User", "Group")


class PolicyRule(Spec):
    """Verbs, and what they are allowed on: resources or paths."""

    verbs: Annotated[tuple[str, ...] | None, doc("What is allowed, such as get; * is everything.")] = None
    api_groups: Annotated[
        tuple[str, ...] | None, doc("Groups of the resources; empty text is the core group, * all.")
    ] = None
    resources: Annotated[
        tuple[str, ...] | None, doc("Resources by plural, also r/status or */status; * is all.")
    ] = None
    resource_names: Annotated[tuple[str, ...] | None, doc("Only objects of these names; all by default.")] = (
        None
    )
    non_resource_urls: Annotated[
        tuple[str, ...] | None, doc("Paths that are no resources; * at the end is any rest.")
    ] = msgspec.field(name="nonResourceURLs", default=None)


class RoleSelectorRequirement(Spec):
    """One thing that must be true of labels."""

    key: Annotated[str | None, doc("The label's key.")] = None
    operator: Annotated[str | None, doc("In, NotIn, Exists or DoesNotExist.")] = None
    values: Annotated[tuple[str, ...] | None, doc("Values, with In and NotIn.")] = None


class RoleSelector(Spec):
    """Roles by their labels; all that is said must hold."""

    match_labels: Annotated[Mapping[str, str] | None, doc("Labels that must all be present.")] = None
    match_expressions: Annotated[
        tuple[RoleSelectorRequirement, ...] | None, doc("What else must be true of the labels.")
    ] = None


class AggregationRule(Spec):
    """Which roles' rules this one is made of."""

    cluster_role_selectors: Annotated[
        tuple[Annotated[RoleSelector, parts.ATOMIC], ...] | None, doc("Roles that fit any of these.")
    ] = None


class RoleSpec(Spec):
    """What is allowed in a namespace."""

    rules: Annotated[tuple[PolicyRule, ...] | None, doc("What is allowed.")] = None


class ClusterRoleSpec(Spec):
    """What is allowed everywhere, or wherever a RoleBinding says."""

    rules: Annotated[tuple[PolicyRule, ...] | None, doc("What is allowed.")] = None
    aggregation_rule: Annotated[
        AggregationRule | None, doc("Roles whose rules become this one's; its own are then overwritten.")
    ] = None


class RoleRef(Spec):
    """The role that is given."""

    api_group: Annotated[str | None, doc(f"Always {GROUP}.")] = None
    kind: Annotated[str | None, doc("Role or ClusterRole.")] = None
    name: Annotated[str | None, doc("Its name.")] = None


class Subject(Spec):
    """Who gets the role."""

    kind: Annotated[str | None, doc("User, Group or ServiceAccount.")] = None
    api_group: Annotated[str | None, doc(f"{GROUP} for users and groups, else empty.")] = None
    name: Annotated[str | None, doc("Whose name this is.")] = None
    namespace: Annotated[str | None, doc("Where a ServiceAccount lives.")] = None


class BindingSpec(Spec):
    """Who gets which role."""

    subjects: Annotated[tuple[Annotated[Subject, parts.ATOMIC], ...] | None, doc("Who gets the role.")] = None
    role_ref: Annotated[RoleRef | None, doc("The role; it cannot change."), parts.ATOMIC] = None


def validate_role(spec: RoleSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Rules that allow nothing, or what a namespace does not have."""
    yield from _rule_violations(spec.rules or (), is_namespaced=True)


def validate_cluster_role(spec: ClusterRoleSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Rules that allow nothing, and selectors that cannot be read."""
    yield from _rule_violations(spec.rules or (), is_namespaced=False)
    if spec.aggregation_rule is None:
        return
    at = "aggregationRule.clusterRoleSelectors"
    selectors = spec.aggregation_rule.cluster_role_selectors or ()
    if not selectors:
        yield field_errors.required(
            at, "at least one clusterRoleSelector required if aggregationRule is non-nil"
        )
    for index, selector in enumerate(selectors):
        yield from selector_violations(selector, item(at, index))


def _rule_violations(rules: Iterable[PolicyRule], *, is_namespaced: bool) -> Iterator[Violation]:
    for index, rule in enumerate(rules):
        at = item("rules", index)
        if not rule.verbs:
            yield field_errors.required(child(at, "verbs"), "verbs must contain at least one value")
        if rule.non_resource_urls:
            yield from _url_violations(rule, child(at, "nonResourceURLs"), is_namespaced=is_namespaced)
            continue
        if not rule.api_groups:
            yield field_errors.required(
                child(at, "apiGroups"), "resource rules must supply at least one api group"
            )
        if not rule.resources:
            yield field_errors.required(
                child(at, "resources"), "resource rules must supply at least one resource"
            )


def _url_violations(rule: PolicyRule, path: str, *, is_namespaced: bool) -> Iterator[Violation]:
    urls = list(rule.non_resource_urls or ())
    if is_namespaced:
        yield field_errors.invalid(
            path, urls, "namespaced rules cannot apply to non-resource URLs", "namespaced"
        )
    if rule.api_groups or rule.resources or rule.resource_names:
        message = "rules cannot apply to both regular resources and non-resource URLs"
        yield field_errors.invalid(path, urls, message, "exclusive")


def selector_violations(selector: RoleSelector, path: str) -> Iterator[Violation]:
    """What is wrong with a selector of labels."""
    at = child(path, "matchLabels")
    for name, value in sorted((selector.match_labels or {}).items()):
        for violation in labels.syntax({name: value}):
            yield field_errors.invalid(at, name, violation.message, "label")
    for index, each in enumerate(selector.match_expressions or ()):
        yield from _requirement_violations(each, item(child(path, "matchExpressions"), index))


def _requirement_violations(needed: RoleSelectorRequirement, path: str) -> Iterator[Violation]:
    at = child(path, "values")
    match needed.operator:
        case "In" | "NotIn":
            if not needed.values:
                yield field_errors.required(at, "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if needed.values:
                message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield field_errors.forbidden(at, message)
        case unknown:
            yield field_errors.invalid(
                child(path, "operator"), unknown or "", "not a valid selector operator"
            )
    for message in parts.qualified_name_messages(needed.key or ""):
        yield field_errors.invalid(child(path, "key"), needed.key or "", message, "label")


def clean_binding(spec: Json) -> Json:
    """The group of roles, users and groups, where nobody wrote it."""
    if not isinstance(spec, dict):
        return spec
    read = parts.without_nulls(spec)
    return parts.changed(read, {"roleRef": _in_group, "subjects": _subjects_in_group})


def _subjects_in_group(subjects: Json) -> Json:
    if not isinstance(subjects, list):
        return subjects
    return [
        _in_group(each) if parts.as_map(each).get("kind") in _NAMED_IN_GROUP else each for each in subjects
    ]


def _in_group(reference: Json) -> Json:
    if not isinstance(reference, dict) or reference.get("apiGroup"):
        return reference
    return {**reference, "apiGroup": GROUP}


def validate_role_binding(spec: BindingSpec, context: ValidationContext) -> Iterator[Violation]:
    """What cannot be bound in a namespace."""
    yield from _ref_violations(spec.role_ref or RoleRef(), ("Role", "ClusterRole"))
    yield from _subject_violations(spec.subjects or (), is_namespaced=True)
    yield from _change_violations(spec.role_ref or RoleRef(), context.stored)


def validate_cluster_role_binding(spec: BindingSpec, context: ValidationContext) -> Iterator[Violation]:
    """What cannot be bound everywhere."""
    yield from _ref_violations(spec.role_ref or RoleRef(), ("ClusterRole",))
    yield from _subject_violations(spec.subjects or (), is_namespaced=False)
    yield from _change_violations(spec.role_ref or RoleRef(), context.stored)


def _ref_violations(ref: RoleRef, kinds: tuple[str, ...]) -> Iterator[Violation]:
    if (ref.api_group or GROUP) != GROUP:
        yield field_errors.unsupported("roleRef.apiGroup", ref.api_group, (GROUP,))
    if ref.kind not in kinds:
        yield field_errors.unsupported("roleRef.kind", ref.kind or "", kinds)
    if not ref.name:
        yield field_errors.required("roleRef.name")
    for message in parts.segment_messages(ref.name or ""):
        yield field_errors.invalid("roleRef.name", ref.name, message, "name")


def _change_violations(ref: RoleRef, stored: Json) -> Iterator[Violation]:
    before = parts.as_map(stored).get("roleRef")
    now = _in_group(msgspec.to_builtins(ref))
    if before and _in_group(before) != now:
        yield field_errors.invalid("roleRef", now, "cannot change roleRef", "changed")


def _subject_violations(subjects: Iterable[Subject], *, is_namespaced: bool) -> Iterator[Violation]:
    for index, subject in enumerate(subjects):
        at = item("subjects", index)
        if not subject.name:
            yield field_errors.required(child(at, "name"))
        match subject.kind:
            case "ServiceAccount":
                yield from _account_violations(subject, at, is_namespaced=is_namespaced)
            case "User" | "Group":
                if (subject.api_group or GROUP) != GROUP:
                    yield field_errors.unsupported(child(at, "apiGroup"), subject.api_group, (GROUP,))
            case unknown:
                kinds = ("ServiceAccount", *_NAMED_IN_GROUP)
                yield field_errors.unsupported(child(at, "kind"), unknown or "", kinds)


def _account_violations(subject: Subject, path: str, *, is_namespaced: bool) -> Iterator[Violation]:
    if subject.name:
        for message in parts.subdomain_messages(subject.name):
            yield field_errors.invalid(child(path, "name"), subject.name, message, "name")
    if subject.api_group:
        yield field_errors.unsupported(child(path, "apiGroup"), subject.api_group, ("",))
    if not is_namespaced and not subject.namespace:
        yield field_errors.required(child(path, "namespace"))


def _role(spec: Json, _status: Json) -> str:
    return f"{spec['roleRef']['kind']}/{spec['roleRef']['name']}"


def _subjects(title: str, kind: str) -> Column:
    def value(spec: Json, _status: Json) -> str:
        found = [each for each in spec.get("subjects") or () if each.get("kind") == kind]
        return ", ".join(
            f"{each.get('namespace') or ''}/{each['name']}" if kind == "ServiceAccount" else each["name"]
            for each in found
        )

    return Column(title, value, "Who gets the role.", is_wide=True)


_BINDING_COLUMNS: Final = (
    Column("Role", _role, "The role that is given."),
    _subjects("Users", "User"),
    _subjects("Groups", "Group"),
    _subjects("ServiceAccounts", "ServiceAccount"),
)

ROLE = Kind(
    name="Role",
    plural="roles",
    set_name=f"Role.{GROUP}",
    group=GROUP,
    doc="What may be done in a namespace.",
    spec=RoleSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    clean=parts.without_nulls,
    validate=validate_role,
)

CLUSTER_ROLE = Kind(
    name="ClusterRole",
    plural="clusterroles",
    set_name=f"ClusterRole.{GROUP}",
    group=GROUP,
    doc="What may be done everywhere, or in the namespaces where a RoleBinding gives it.",
    spec=ClusterRoleSpec,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    at_root=True,
    clean=parts.without_nulls,
    validate=validate_cluster_role,
)

ROLE_BINDING = Kind(
    name="RoleBinding",
    plural="rolebindings",
    set_name=f"RoleBinding.{GROUP}",
    group=GROUP,
    doc="Who gets a role in a namespace.",
    spec=BindingSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    clean=clean_binding,
    validate=validate_role_binding,
    columns=_BINDING_COLUMNS,
)

CLUSTER_ROLE_BINDING = Kind(
    name="ClusterRoleBinding",
    plural="clusterrolebindings",
    set_name=f"ClusterRoleBinding.{GROUP}",
    group=GROUP,
    doc="Who gets a role everywhere.",
    spec=BindingSpec,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    at_root=True,
    clean=clean_binding,
    validate=validate_cluster_role_binding,
    columns=_BINDING_COLUMNS,
)
