"""RBAC: what stored roles and bindings allow, and to whom.

Rules are per group and resource and know nothing of aliases: two endpoints over the same objects are two
rights. Stored objects are read as they are; a malformed part grants nothing to anybody.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.model import label_selector
from koguma.model.access import ANY, Attempt, Rule
from koguma.model.resource import Resource
from koguma.model.schema import Json

GROUP: Final = "rbac.authorization.k8s.io"
ROLE: Final = "Role"
CLUSTER_ROLE: Final = "ClusterRole"
ROLE_BINDING: Final = "RoleBinding"
CLUSTER_ROLE_BINDING: Final = "ClusterRoleBinding"
PLURALS: Final = {
    ROLE: "roles",
    CLUSTER_ROLE: "clusterroles",
    ROLE_BINDING: "rolebindings",
    CLUSTER_ROLE_BINDING: "clusterrolebindings",
}
USER: Final = "User"
USER_GROUP: Final = "Group"
SERVICE_ACCOUNT: Final = "ServiceAccount"
EVERYTHING: Final = (
    Rule(verbs=(ANY,), groups=(ANY,), resources=(ANY,)),
    Rule(verbs=(ANY,), groups=(), paths=(ANY,)),
)


def set_name(kind: str) -> str:
    """The word under which the objects of one of these kinds are stored."""
    return f"{kind}.{GROUP}"


class RbacObjects(msgspec.Struct, frozen=True):
    """The stored roles and bindings. The store gives the same tuples until one of their objects changes."""

    roles: tuple[Resource, ...] = ()
    cluster_roles: tuple[Resource, ...] = ()
    role_bindings: tuple[Resource, ...] = ()
    cluster_role_bindings: tuple[Resource, ...] = ()

    def is_same(self, other: "RbacObjects") -> bool:
        """Whether nothing changed since the other."""
        return (
            self.roles is other.roles
            and self.cluster_roles is other.cluster_roles
            and self.role_bindings is other.role_bindings
            and self.cluster_role_bindings is other.cluster_role_bindings
        )


class Grant(msgspec.Struct, frozen=True):
    """Rules that a user or a group has: in one namespace, or everywhere where that is empty."""

    kind: str  # of the subject: User or Group
    subject: str
    rules: tuple[Rule, ...]
    namespace: str = ""
    source: str = ""  # which binding grants them, as messages write it

    def allows(self, attempt: Attempt) -> bool:
        """Whether one of its rules covers the attempt."""
        if self.namespace and self.namespace != attempt.namespace:
            return False
        return any(covers(rule, attempt) for rule in self.rules)


def covers(rule: Rule, attempt: Attempt) -> bool:
    """Whether a rule allows an attempt."""
    if attempt.verb not in rule.verbs and ANY not in rule.verbs:
        return False
    if attempt.path:
        return any(path_covers(path, attempt.path) for path in rule.paths)
    return (
        (attempt.group in rule.groups or ANY in rule.groups)
        and _names_resource(rule, attempt)
        and (not rule.names or (attempt.name != "" and attempt.name in rule.names))
        and (not rule.meshes or attempt.mesh in rule.meshes)
    )


def _names_resource(rule: Rule, attempt: Attempt) -> bool:
    """A rule for a resource does not cover its subresources; `*` covers all of them."""
    if ANY in rule.resources or attempt.whole_resource in rule.resources:
        return True
    return attempt.subresource != "" and f"{ANY}/{attempt.subresource}" in rule.resources


def path_covers(pattern: str, path: str) -> bool:
    """Whether a path of a rule, which may end in a star, covers a path."""
    return pattern == path or (pattern.endswith(ANY) and path.startswith(pattern.rstrip(ANY)))


class Roles:
    """The stored roles by name; aggregated ClusterRoles have the rules that they select."""

    def __init__(self, stored: RbacObjects) -> None:
        self._cluster = {role.name: role for role in stored.cluster_roles}
        self._local = {(role.namespace, role.name): role for role in stored.roles}
        self._aggregated: dict[str, tuple[Rule, ...]] = {}

    def rules(self, kind: str, name: str, namespace: str = "") -> tuple[Rule, ...] | None:
        """What a role allows; None where there is no such role."""
        if kind == CLUSTER_ROLE:
            return self._cluster_rules(name)
        role = self._local.get((namespace, name)) if kind == ROLE and namespace else None
        return None if role is None else rules_in(role.spec)

    def _cluster_rules(self, name: str) -> tuple[Rule, ...] | None:
        role = self._cluster.get(name)
        if role is None:
            return None
        known = self._aggregated.get(name)
        if known is None:
            known = self._aggregated[name] = aggregated(role, self._cluster.values())
        return known


def aggregated(role: Resource, others: Iterable[Resource]) -> tuple[Rule, ...]:
    """The rules of a ClusterRole; for an aggregated one those that it selects, also through other ones."""
    return tuple(dict.fromkeys(rule for item in _sources(role, others) for rule in rules_in(item.spec)))


def aggregated_rules(role: Resource, others: Iterable[Resource]) -> list[Json]:
    """The same rules as they are written, in the order of their roles' names."""
    rules: list[Json] = []
    for item in sorted(_sources(role, others), key=lambda source: source.name):
        rules += [rule for rule in _items(_mapping(item.spec).get("rules")) if rule not in rules]
    return rules


def _sources(role: Resource, others: Iterable[Resource]) -> list[Resource]:
    """The ClusterRoles whose own rules a ClusterRole has: itself, or those that it selects."""
    selected = {role.name: role}
    queue, others = [role], tuple(others)
    while queue:
        selectors = _selectors(queue.pop().spec)
        for other in others if selectors else ():
            if other.name not in selected and any(
                label_selector.selects(item, other.labels) for item in selectors
            ):
                selected[other.name] = other
                queue.append(other)
    return [item for item in selected.values() if not is_aggregated(item.spec)]


def is_aggregated(spec: Json) -> bool:
    """Whether a ClusterRole takes its rules from others."""
    return bool(_selectors(spec))


def _selectors(spec: Json) -> list[Json]:
    return _items(_mapping(_mapping(spec).get("aggregationRule")).get("clusterRoleSelectors"))


def grants(stored: RbacObjects, roles: Roles) -> Iterator[Grant]:
    """Who has which rules, by the stored bindings; those that name no role that exists give nothing."""
    for binding in stored.cluster_role_bindings:
        yield from _granted(binding, CLUSTER_ROLE_BINDING, "", roles)
    for binding in stored.role_bindings:
        if binding.namespace:
            yield from _granted(binding, ROLE_BINDING, binding.namespace, roles)


def _granted(binding: Resource, kind: str, namespace: str, roles: Roles) -> Iterator[Grant]:
    ref = _mapping(_mapping(binding.spec).get("roleRef"))
    role_kind, role_name = str(ref.get("kind")), str(ref.get("name"))
    rules = roles.rules(role_kind, role_name, namespace)
    if not rules:
        return
    name = f"{binding.name}/{namespace}" if namespace else binding.name
    for subject_kind, subject, text in _subjects(binding.spec, namespace):
        source = f'{kind} "{name}" of {role_kind} "{role_name}" to {text}'
        yield Grant(subject_kind, subject, rules, namespace, source)


def _subjects(spec: Json, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Each subject as user or group, its name, and its text in messages."""
    for subject in map(_mapping, _items(_mapping(spec).get("subjects"))):
        kind, name, home = subject.get("kind"), subject.get("name"), subject.get("namespace") or namespace
        if not isinstance(name, str) or not name:
            continue
        if kind in (USER, USER_GROUP):
            yield str(kind), name, f'{kind} "{name}"'
        elif kind == SERVICE_ACCOUNT and isinstance(home, str) and home:
            yield USER, f"system:serviceaccount:{home}:{name}", f'{kind} "{name}/{home}"'


def rules_in(spec: Json) -> tuple[Rule, ...]:
    """The rules of a role as it is stored."""
    return tuple(_rule(each) for each in _items(_mapping(spec).get("rules")) if isinstance(each, dict))


def _rule(rule: Mapping[str, Json]) -> Rule:
    names = rule.get("resourceNames") or []
    names_read = _texts(names)
    # Names that cannot be read must not turn a rule for some objects into one for all.
    readable = isinstance(names, list) and len(names_read) == len(names)
    return Rule(
        verbs=_texts(rule.get("verbs")) if readable else (),
        groups=_texts(rule.get("apiGroups")),
        resources=_texts(rule.get("resources")),
        names=names_read,
        paths=_texts(rule.get("nonResourceURLs")),
    )


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(each for each in _items(value) if isinstance(each, str))
