"""Escalation: nobody gives away rights that he does not have.

Asked before a role or a binding is stored, for every write that changes more than finalizers and owners.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from koguma.access.authorizer import Attempt, Authorizer
from koguma.access.user import User
from koguma.kube import escalation, rbac
from koguma.model.access import Rule
from koguma.model.errors import Forbidden, NotFound
from koguma.model.schema import Json

GROUP: Final = rbac.GROUP  # of the kinds that this is about


def check(
    access: Authorizer,
    user: User,
    kind: str,
    namespace: str,
    spec: Json,
    *,
    name: str = "",
    before: Json = None,
) -> None:
    """Raise Forbidden where a user writes a role or a binding that gives more than he has.

    `kind` is the name of one of the four kinds, `spec` what it is to become, `before` what it was.
    """
    if kind in (rbac.ROLE, rbac.CLUSTER_ROLE):
        _check_role(access, user, kind, namespace, spec, name=name, before=before)
    elif kind in (rbac.ROLE_BINDING, rbac.CLUSTER_ROLE_BINDING):
        _check_binding(access, user, kind, namespace, spec, name=name)


def _check_role(
    access: Authorizer, user: User, kind: str, namespace: str, spec: Json, *, name: str, before: Json
) -> None:
    plural = rbac.PLURALS[kind]
    attempt = Attempt("escalate", plural, name, group=rbac.GROUP, namespace=namespace)
    if access.allows(user, attempt):
        return
    held = access.rules(user, namespace)
    _confirm(user, rbac.rules_in(spec), held, kind, name)
    gathers = kind == rbac.CLUSTER_ROLE and (rbac.is_aggregated(spec) or rbac.is_aggregated(before))
    if gathers and escalation.missing(rbac.EVERYTHING, held):
        # It gathers whatever will carry its labels, so no set of rights is enough but all of them.
        words = "must have cluster-admin privileges to use the aggregationRule"
        raise Forbidden(f"{_subject(kind, name)} is forbidden: {words}")


def _check_binding(
    access: Authorizer, user: User, kind: str, namespace: str, spec: Json, *, name: str
) -> None:
    ref = spec.get("roleRef") if isinstance(spec, Mapping) else None
    ref = ref if isinstance(ref, Mapping) else {}
    role_kind, role = str(ref.get("kind", "")), str(ref.get("name", ""))
    plural = rbac.PLURALS.get(role_kind, "")
    attempt = Attempt("bind", plural, role, group=rbac.GROUP, namespace=namespace)
    if access.allows(user, attempt):
        return
    rules = access.role_rules(role_kind, role, namespace)
    if rules is None:
        raise NotFound(f'{plural or role_kind}.{rbac.GROUP} "{role}" not found')
    _confirm(user, rules, access.rules(user, namespace), kind, name)


def _confirm(user: User, rules: Iterable[Rule], held: Iterable[Rule], kind: str, name: str) -> None:
    lacking = escalation.missing(rules, held)
    if lacking:
        who = f'user "{user.name}" (groups={escalation.quoted(user.all_groups)})'
        listed = "\n".join(sorted({escalation.rule_text(rule) for rule in lacking}))
        words = f"{who} is attempting to grant RBAC permissions not currently held:\n{listed}"
        raise Forbidden(f"{_subject(kind, name)} is forbidden: {words}")


def _subject(kind: str, name: str) -> str:
    shown = f' "{name}"' if name else ""
    return f"{rbac.PLURALS[kind]}.{rbac.GROUP}{shown}"
