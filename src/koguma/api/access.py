"""Access: who may do what, by rules of the Kubernetes shape. What no rule allows is denied.

A rule names verbs and either resources (group, resource, optionally names and meshes) or paths. The plain
REST form is an endpoint group of its own, `rest.koguma.io`, so that a rule for it opens nothing else.
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from koguma.api.user import ADMIN_GROUP, AUTHENTICATED, User
from koguma.model.access import REST_GROUP, Binding, Role, Rule
from koguma.model.errors import Forbidden
from koguma.model.kind import Kinds

ANY: Final = "*"
READ_VERBS: Final = ("get", "list", "watch")
WRITE_VERBS: Final = ("create", "update", "patch", "delete")
_DECIDED_MAX: Final = 10_000
TOKEN_RESOURCES: Final = ("usertokens", "dataplanetokens", "zonetokens")


class Attempt(msgspec.Struct, frozen=True):
    """What somebody wants to do: a verb on a resource, or on a path."""

    verb: str
    resource: str = ""
    name: str = ""
    mesh: str = ""
    group: str = REST_GROUP
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.verb} {self.path}"
        name = f' "{self.name}"' if self.name else ""
        mesh = f' in mesh "{self.mesh}"' if self.mesh else ""
        return f"{self.verb} {self.resource}.{self.group}{name}{mesh}"


def builtin_roles(kinds: Kinds) -> tuple[Role, ...]:
    """admin: everything. view and edit: everything but secrets and tokens, kind by kind."""
    open_kinds = tuple(kind.plural for kind in kinds if not kind.admin_only)
    read = Rule(verbs=READ_VERBS, resources=open_kinds)
    pages = Rule(verbs=("get",), paths=("/config", "/metrics"))
    return (
        Role(
            name="admin",
            rules=(
                Rule(verbs=(ANY,), groups=(ANY,), resources=(ANY,)),
                Rule(verbs=(ANY,), paths=(ANY,)),
            ),
        ),
        Role(name="view", rules=(read, pages)),
        Role(name="edit", rules=(read, pages, Rule(verbs=WRITE_VERBS, resources=open_kinds))),
        Role(
            name="discovery",
            rules=(Rule(verbs=("get",), paths=("/policies", "/_resources", "/openapi.json")),),
        ),
    )


BUILTIN_BINDINGS: Final = (
    Binding(role="admin", groups=(ADMIN_GROUP,)),
    Binding(role="discovery", groups=(AUTHENTICATED,)),
)


class Access:
    """Answers whether an attempt is allowed. Rules do not change while it lives; make a new one."""

    def __init__(self, roles: Iterable[Role], bindings: Iterable[Binding]) -> None:
        by_name = {role.name: role for role in roles}
        self._by_user: dict[str, list[Rule]] = {}
        self._by_group: dict[str, list[Rule]] = {}
        for binding in bindings:
            if binding.role not in by_name:
                raise ValueError(f'access: binding names role "{binding.role}", which does not exist')
            rules = by_name[binding.role].rules
            for user in binding.users:
                self._by_user.setdefault(user, []).extend(rules)
            for group in binding.groups:
                self._by_group.setdefault(group, []).extend(rules)
        self._decided: dict[tuple[User, str, str, str, str], bool] = {}

    def allows(self, user: User, attempt: Attempt) -> bool:
        """Whether some rule allows it."""
        return any(_covers(rule, attempt) for rule in self._rules(user))

    def allows_on(self, user: User, verb: str, resource: str, name: str, mesh: str) -> bool:
        """The same for a resource of the plain form, from memory where it was asked before."""
        key = (user, verb, resource, name, mesh)
        decided = self._decided.get(key)
        if decided is None:
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
            decided = self._decided[key] = self.allows(user, Attempt(verb, resource, name, mesh))
        return decided

    def _rules(self, user: User) -> Iterable[Rule]:
        yield from self._by_user.get(user.name, ())
        for group in user.groups:
            yield from self._by_group.get(group, ())

    def check(self, user: User, attempt: Attempt, refusal: str = "") -> None:
        """Raise Forbidden, saying what is missing, unless the user may."""
        if not self.allows(user, attempt):
            raise Forbidden(refusal or f'user "{user}" cannot {attempt}: no access rule allows it')

    def check_any(self, user: User, verbs: Collection[str], resource: str = "") -> None:
        """Raise Forbidden where no rule lets the user do any of this to anything: then no body is read."""
        for rule in self._rules(user):
            named = not resource or resource in rule.resources or ANY in rule.resources
            if rule.resources and named and (ANY in rule.verbs or any(verb in rule.verbs for verb in verbs)):
                return
        raise Forbidden(
            f'user "{user}" cannot {" or ".join(verbs)} {resource or "anything"}: no access rule allows it'
        )


def _covers(rule: Rule, attempt: Attempt) -> bool:
    if attempt.verb not in rule.verbs and ANY not in rule.verbs:
        return False
    if attempt.path:
        return any(_path_covers(path, attempt.path) for path in rule.paths)
    return (
        (attempt.group in rule.groups or ANY in rule.groups)
        and (attempt.resource in rule.resources or ANY in rule.resources)
        and (not rule.names or attempt.name in rule.names)
        and (not rule.meshes or attempt.mesh in rule.meshes)
    )


def _path_covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith(ANY) else path == pattern
