"""Authorizer: who may do what, by RBAC rules as Kubernetes has them. What no rule allows is denied.

A rule names verbs and either resources (group, resource, optionally names and meshes) or paths. The plain
REST form is an endpoint group of its own, `rest.koguma.io`, so that a rule for it opens nothing else. Rules
come from the settings, read at start, and from stored roles and bindings, which take effect at once.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from shlex import quote
from typing import Final

import msgspec

from koguma.access.user import ADMIN_GROUP, ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User
from koguma.kube import namespaced_names, rbac
from koguma.kube.rbac import Grant, RbacObjects
from koguma.kube.rbac_defaults import DISCOVERY_PATHS, PROXY_FIGURES, PUBLIC_PATHS, SELF_REVIEWS
from koguma.model import forms
from koguma.model.access import ANY, REST_GROUP, Attempt, Binding, Role, Rule
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Forbidden
from koguma.model.kind import Kind, Kinds
from koguma.model.resource import Resource
from koguma.model.short_keys import is_short
from koguma.store.state import State

__all__ = [
    "ANY",
    "BUILTIN_BINDINGS",
    "READ_VERBS",
    "REST_GROUP",
    "WRITE_VERBS",
    "Attempt",
    "Authorizer",
    "builtin_roles",
    "denied",
    "namespace_of",
    "stored_in",
]

READ_VERBS: Final = ("get", "list", "watch")
WRITE_VERBS: Final = ("create", "update", "patch", "delete")
_DECISIONS_MAX: Final = 10_000
# The default roles that an error suggests, the least powerful first.
_GRANTED_ROLES: Final = ("view", "edit", "admin")
_UNFIT_FOR_NAMES = re.compile(r"[^0-9a-z.-]+")
_PUBLIC: Final = "system:public-info-viewer"


def _texts(user: User) -> Iterator[str]:
    """All texts of a user; impersonation and reviews let callers choose them freely."""
    yield from (user.name, user.uid, *user.groups)
    for key, values in user.extra:
        yield from (key, *values)


def builtin_roles(kinds: Kinds) -> tuple[Role, ...]:
    """admin: everything. view and edit: the plain form's objects but secrets and tokens, kind by kind.

    edit does not write what is for administrators to write, such as patches of a proxy's configuration.
    """
    open_kinds = tuple(kind.plural for kind in kinds if not kind.admin_only)
    edited = tuple(kind.plural for kind in kinds if not (kind.admin_only or kind.admin_written))
    read = Rule(verbs=READ_VERBS, resources=open_kinds)
    figures = Rule(verbs=("get",), resources=PROXY_FIGURES)
    pages = Rule(verbs=("get",), paths=("/config", "/metrics"))
    about_oneself = tuple(
        Rule(verbs=("create",), groups=(group,), resources=resources) for group, resources in SELF_REVIEWS
    )
    return (
        Role(name="admin", rules=rbac.EVERYTHING),
        Role(name="view", rules=(read, figures, pages)),
        Role(name="edit", rules=(read, figures, pages, Rule(verbs=WRITE_VERBS, resources=edited))),
        Role(name="discovery", rules=(Rule(verbs=("get",), paths=DISCOVERY_PATHS), *about_oneself)),
        Role(name=_PUBLIC, rules=(Rule(verbs=("get",), paths=PUBLIC_PATHS),)),
    )


# Built in and not stored, so that nobody can lock himself out by deleting them.
BUILTIN_BINDINGS: Final = (
    Binding(role="admin", groups=(ADMIN_GROUP,)),
    Binding(role="discovery", groups=(AUTHENTICATED,)),
    Binding(role=_PUBLIC, groups=(AUTHENTICATED, UNAUTHENTICATED)),
)


class Authorizer:
    """Decides whether an attempt is allowed, by the current rules.

    `stored` gives the roles and bindings that the store has; when they change, cached decisions are dropped.
    """

    def __init__(
        self,
        roles: Iterable[Role],
        bindings: Iterable[Binding],
        stored: Callable[[], RbacObjects] | None = None,
    ) -> None:
        self._configured_grants = tuple(_configured(roles, bindings))
        self._read_stored = stored
        self._renew(RbacObjects())

    def _renew(self, stored: RbacObjects) -> None:
        self._stored = stored
        self._roles = rbac.Roles(stored)
        self._decisions: dict[Hashable, bool] = {}
        self._grants_by_subject: dict[tuple[str, str], list[Grant]] = {}
        for grant in (*self._configured_grants, *rbac.grants(stored, self._roles)):
            self._grants_by_subject.setdefault((grant.kind, grant.subject), []).append(grant)

    def _refresh(self) -> None:
        if self._read_stored is not None and (stored := self._read_stored()) is not self._stored:
            if stored.is_same(self._stored):
                self._stored = stored
            else:
                self._renew(stored)

    def allows(self, user: User, attempt: Attempt) -> bool:
        """Whether some rule allows it; decisions are cached."""
        if self._read_stored is not None and self._read_stored() is not self._stored:
            self._refresh()
        key = (user, attempt)
        is_allowed = self._decisions.get(key)
        return self._decide(key, user, attempt) if is_allowed is None else is_allowed

    def allows_on(
        self, user: User, verb: str, resource: str, name: str, mesh: str, namespace: str = ""
    ) -> bool:
        """The same for a resource of the plain form."""
        if self._read_stored is not None and self._read_stored() is not self._stored:
            self._refresh()  # compared here first: every request passes this
        key = (user, verb, resource, name, mesh, namespace)
        is_allowed = self._decisions.get(key)
        if is_allowed is None:
            attempt = Attempt(verb, resource, name, mesh, namespace=namespace)
            is_allowed = self._decide(key, user, attempt)
        return is_allowed

    def _decide(self, key: Hashable, user: User, attempt: Attempt) -> bool:
        is_allowed = self._granting(user, attempt) is not None
        if not is_short(*msgspec.structs.astuple(attempt)) or not is_short(*_texts(user)):
            return is_allowed
        if len(self._decisions) >= _DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = is_allowed
        return is_allowed

    def _granting(self, user: User, attempt: Attempt) -> Grant | None:
        return next((grant for grant in self._grants(user) if grant.allows(attempt)), None)

    def _grants(self, user: User) -> Iterator[Grant]:
        yield from self._grants_by_subject.get((rbac.USER, user.name), ())
        for group in user.all_groups:
            yield from self._grants_by_subject.get((rbac.USER_GROUP, group), ())

    def reason(self, user: User, attempt: Attempt) -> str:
        """Which binding allows it, as text; empty where none does."""
        self._refresh()
        grant = self._granting(user, attempt)
        return "" if grant is None else grant.source

    def rules(self, user: User, namespace: str = "") -> tuple[Rule, ...]:
        """All rules that a user has everywhere, and those that he has in a namespace."""
        self._refresh()
        held = (grant for grant in self._grants(user) if grant.namespace in ("", namespace))
        return tuple(dict.fromkeys(rule for grant in held for rule in grant.rules))

    def role_rules(self, kind: str, name: str, namespace: str = "") -> tuple[Rule, ...] | None:
        """What a stored Role or ClusterRole allows; None where there is no such role."""
        self._refresh()
        return self._roles.rules(kind, name, namespace)

    def check(self, user: User, attempt: Attempt, refusal: str = "") -> None:
        """Raise Forbidden, naming the missing right, unless some rule allows it."""
        if not self.allows(user, attempt):
            raise self.refusal(user, attempt, refusal)

    def refusal(self, user: User, attempt: Attempt, words: str = "") -> Forbidden:
        """The error for an attempt that no rule allows: the missing right, and who can grant it."""
        words = words or f'user "{user}" cannot {attempt}: no access rule allows it'
        return Forbidden(f"{words}; {self.remedy(user, attempt)}")

    def remedy(self, user: User, attempt: Attempt) -> str:
        """Who can grant a refused attempt, and with which command."""
        if user == ANONYMOUS:
            return (
                "no token was sent: an administrator issues one with"
                " `koguma token user --name NAME --valid-for 24h`, and --token-file sends it; on the control"
                " plane's own machine its owner needs none: `koguma` finds api.sock in the data directory"
                " (KOGUMA_DATA_DIR), and curl takes it with --unix-socket"
            )
        role = next((name for name in _GRANTED_ROLES if self._role_covers(name, attempt)), None)
        if role is None:
            what = attempt.path or attempt.whole_resource
            return (
                f"administrators (group {ADMIN_GROUP}) may, and whoever gets a role with a rule for {what}:"
                " docs/access.md says how"
            )
        name = _UNFIT_FOR_NAMES.sub("-", user.name.lower()).strip("-.")
        command = (
            f"kubectl create clusterrolebinding {name}-{role} --clusterrole={role} --user={quote(user.name)}"
        )
        return f"an administrator (group {ADMIN_GROUP}) can allow it: `{command}`"

    def _role_covers(self, name: str, attempt: Attempt) -> bool:
        rules = self._roles.rules(rbac.CLUSTER_ROLE, name)
        return rules is not None and any(rbac.covers(rule, attempt) for rule in rules)

    def allows_any(self, user: User, verbs: Collection[str], resource: str = "") -> bool:
        """Whether some rule lets the user do any of this to some object of the plain form."""
        self._refresh()
        return any(_is_about(rule, verbs, resource) for grant in self._grants(user) for rule in grant.rules)

    def check_any(self, user: User, verbs: Collection[str], resource: str = "") -> None:
        """Raise Forbidden where no rule lets the user do any of this to anything: then no body is read."""
        if self.allows_any(user, verbs, resource):
            return
        words = (
            f'user "{user}" cannot {" or ".join(verbs)} {resource or "anything"}: no access rule allows it'
        )
        attempt = Attempt(next(iter(verbs)), resource or "meshes")
        raise Forbidden(f"{words}; {self.remedy(user, attempt)}")


def _configured(roles: Iterable[Role], bindings: Iterable[Binding]) -> Iterator[Grant]:
    """The grants of the settings and of the built-in bindings."""
    by_name = {role.name: role for role in roles}
    for binding in bindings:
        if binding.role not in by_name:
            raise ValueError(f'access: binding names role "{binding.role}", which does not exist')
        rules = by_name[binding.role].rules
        subjects = [(rbac.USER, user) for user in binding.users]
        subjects += [(rbac.USER_GROUP, group) for group in binding.groups]
        for kind, subject in subjects:
            source = f'the settings, which give role "{binding.role}" to {kind} "{subject}"'
            yield Grant(kind, subject, rules, source=source)


def _is_about(rule: Rule, verbs: Collection[str], resource: str) -> bool:
    """Whether a rule is for some verb on a resource of the plain form, or on any where none is named."""
    return (
        bool(rule.resources)
        and (REST_GROUP in rule.groups or ANY in rule.groups)
        and (not resource or resource in rule.resources or ANY in rule.resources)
        and (ANY in rule.verbs or any(verb in rule.verbs for verb in verbs))
    )


def stored_in(state: Callable[[], State]) -> Callable[[], RbacObjects]:
    """Reads the stored roles and bindings; cheap as long as the revision is the same."""
    before: State | None = None
    revision, stored = -1, RbacObjects()

    def read() -> RbacObjects:
        nonlocal before, revision, stored
        now = state()
        if now is not before or now.revision != revision:
            current = RbacObjects(
                roles=now.listed(rbac.set_name(rbac.ROLE)),
                cluster_roles=now.listed(rbac.set_name(rbac.CLUSTER_ROLE)),
                role_bindings=now.listed(rbac.set_name(rbac.ROLE_BINDING)),
                cluster_role_bindings=now.listed(rbac.set_name(rbac.CLUSTER_ROLE_BINDING)),
            )
            stored = stored if current.is_same(stored) else current
            before, revision = now, now.revision
        return stored

    return read


def namespace_of(
    kind: Kind, control_plane: ControlPlaneInfo, mesh: str, stored: Resource | None = None
) -> str:
    """The namespace that rules apply to for an object of the plain form: where the Kubernetes form has it.

    `stored` is the stored object; without one, it is where an object without a namespace would be.
    """
    if stored is not None:
        return namespaced_names.namespaced_name(stored, kind, control_plane).namespace
    if not namespaced_names.is_namespaced(kind):
        return ""
    return forms.reserved_namespace(mesh)


def denied(user: User, attempt: Attempt) -> str:
    """The message for a refused attempt, as Kubernetes has it."""
    if attempt.path:
        return f'forbidden: User "{user.name}" cannot {attempt.verb} path "{attempt.path}"'
    qualified = f"{attempt.resource}.{attempt.group}" if attempt.group else attempt.resource
    name = f' "{attempt.name}"' if attempt.name else ""
    what = f'resource "{attempt.whole_resource}" in API group "{attempt.group}"'
    where = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    return f'{qualified}{name} is forbidden: User "{user.name}" cannot {attempt.verb} {what} {where}'
