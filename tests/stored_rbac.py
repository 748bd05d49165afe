"""Stored roles and bindings for tests, and the access that reads them."""

from koguma.access.authorizer import BUILTIN_BINDINGS, Attempt, Authorizer, builtin_roles, stored_in
from koguma.access.user import authenticated
from koguma.kube import rbac
from koguma.main import all_kinds
from koguma.model.access import Binding, Role, Rule
from koguma.model.resource import Resource
from koguma.store.contract import Change, Op
from koguma.store.state import State

KINDS = all_kinds()
ANN, BOB = authenticated("ann", ("devs",)), authenticated("bob", ())
TIMEOUTS = {"apiGroups": ["kuma.io"], "resources": ["meshtimeouts"], "verbs": ["get", "list"]}
PLAIN_TIMEOUTS = {**TIMEOUTS, "apiGroups": ["rest.koguma.io"]}
KUBE = {"group": "kuma.io", "namespace": "shop"}


def role(name, *rules, namespace="", **more):
    kind = "Role" if namespace else "ClusterRole"
    return stored(kind, name, {"rules": list(rules), **more}, namespace)


def role_binding(name, to, subject, namespace="", kind="ClusterRole"):
    """A binding of a role to a user, or to a group where the subject begins with a colon."""
    is_group = subject.startswith(":")
    who = {"kind": "Group" if is_group else "User", "name": subject.removeprefix(":")}
    spec = {"roleRef": {"apiGroup": rbac.GROUP, "kind": kind, "name": to}, "subjects": [who]}
    return stored("RoleBinding" if namespace else "ClusterRoleBinding", name, spec, namespace)


def stored(kind, name, spec, namespace="", labels=None):
    return Resource(
        kind=rbac.set_name(kind),
        name=name,
        core_name=f"{name}.{namespace}" if namespace else name,
        namespace=namespace,
        labels=labels or {},
        spec=spec,
    )


class StoredAccess:
    """Authorizer over a store, with the rules of the code and a few of the settings."""

    def __init__(self, *objects):
        self.state = State()
        red = Rule(verbs=("get",), resources=("meshtimeouts",), meshes=("red",))
        roles = (*builtin_roles(KINDS), Role(name="red", rules=(red,)))
        bindings = (*BUILTIN_BINDINGS, Binding(role="red", users=("rita",)))
        self.access = Authorizer(roles, bindings, stored_in(lambda: self.state))
        self.put(*objects)

    def put(self, *objects, op=Op.CREATE):
        for resource in objects:
            self.state.apply(Change(self.state.revision + 1, op, resource, "", "", "", ""))

    def may(self, user, verb="get", resource="meshtimeouts", name="", **more):
        return self.access.allows(user, Attempt(verb, resource, name, **more))
