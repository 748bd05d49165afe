"""Reviews: access and token reviews, which are answered and not stored.

The answer is the question with a status. Being denied is an answer too, and no error.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.access.authorizer import Attempt, Authorizer
from koguma.access.token_keys import ReviewedToken
from koguma.access.user import User
from koguma.kube import namespaced_names
from koguma.model.access import Rule
from koguma.model.errors import BadRequest, Invalid, Unauthenticated
from koguma.model.schema import Json
from koguma.model.violation import Violation

_GLOBAL: Final = "global"  # `mesh-global` is the namespace of objects of no mesh
_RESOURCE: Final = "resourceAttributes"
_PATH: Final = "nonResourceAttributes"

Verify = Callable[[str, Sequence[str]], ReviewedToken]  # a token, and for whom it should be


class _Question(msgspec.Struct, frozen=True):
    """A review, its user, and what its answer is computed from."""

    document: Mapping[str, Json]
    spec: Mapping[str, Json]
    user: User
    access: Authorizer
    verify: Verify


def answer(kind_name: str, document: Json, user: User, access: Authorizer, verify: Verify) -> Json:
    """The review with its status. `verify` gives the user of a token, or raises Unauthenticated."""
    if not isinstance(document, dict):
        raise BadRequest(f"a {kind_name} is an object")
    spec = _mapping(document, "spec", "")
    status = _ANSWERS[kind_name](_Question(document, spec, user, access, verify))
    return {**document, "status": status}


def _self_access(question: _Question) -> Json:
    _raise_invalid([*_attribute_violations(question.spec), *_metadata_violations(question.document)])
    return _decision(question, question.user)


def _access(question: _Question) -> Json:
    _raise_invalid([*_subject_violations(question.spec), *_metadata_violations(question.document)])
    return _decision(question, _subject(question.spec))


def _local_access(question: _Question) -> Json:
    _raise_invalid(
        [*_subject_violations(question.spec), *_local_violations(question.document, question.spec)]
    )
    return _decision(question, _subject(question.spec))


def _decision(question: _Question, user: User) -> Json:
    reason = question.access.reason(user, _attempt(question.spec))
    return {"allowed": True, "reason": f"RBAC: allowed by {reason}"} if reason else {"allowed": False}


def _attempt(spec: Mapping[str, Json]) -> Attempt:
    if spec.get(_PATH) is not None:
        attributes = _mapping(spec, _PATH, "spec.")
        return Attempt(_text(attributes, "verb"), path=_text(attributes, "path"))
    attributes = _mapping(spec, _RESOURCE, "spec.")
    namespace = _text(attributes, "namespace")
    return Attempt(
        _text(attributes, "verb"),
        _text(attributes, "resource"),
        _text(attributes, "name"),
        _mesh(namespace),
        _text(attributes, "group"),
        namespace=namespace,
        subresource=_text(attributes, "subresource"),
    )


def _mesh(namespace: str) -> str:
    """The mesh of a reserved namespace; rules in the settings may be for one mesh only."""
    mesh = namespaced_names.mesh_of(namespace)
    return "" if mesh is None or mesh == _GLOBAL else mesh


def _subject(spec: Mapping[str, Json]) -> User:
    return User(_text(spec, "user"), _texts(spec, "groups"), _text(spec, "uid"))


def _rules(question: _Question) -> Json:
    namespace = _text(question.spec, "namespace")
    if not namespace:
        raise BadRequest("no namespace on request")
    mesh = _mesh(namespace)
    # A rule for other meshes does not apply to this namespace.
    rules = [r for r in question.access.rules(question.user, namespace) if not r.meshes or mesh in r.meshes]
    return {
        "resourceRules": [_resource_rule(rule) for rule in rules if rule.resources],
        "nonResourceRules": list(_path_rules(rules)),
        "incomplete": False,
    }


def _path_rules(rules: Iterable[Rule]) -> Iterator[Json]:
    """Non-resource rules, merged by path: several roles allow discovery, and people read this list."""
    seen_paths: set[tuple[tuple[str, ...], str]] = set()
    for rule in rules:
        new_paths = [path for path in rule.paths if (rule.verbs, path) not in seen_paths]
        seen_paths |= {(rule.verbs, path) for path in new_paths}
        if new_paths:
            yield {"verbs": list(rule.verbs), "nonResourceURLs": new_paths}


def _resource_rule(rule: Rule) -> Json:
    resource_rule: dict[str, Json] = {
        "verbs": list(rule.verbs),
        "apiGroups": list(rule.groups),
        "resources": list(rule.resources),
    }
    if rule.names:
        resource_rule["resourceNames"] = list(rule.names)
    return resource_rule


def _self(question: _Question) -> Json:
    return {"userInfo": user_info(question.user)}


def _token(question: _Question) -> Json:
    token, audiences = _text(question.spec, "token"), _texts(question.spec, "audiences")
    if not token:
        raise BadRequest("token is required for TokenReview in authentication")
    try:
        reviewed = question.verify(token, audiences)
    except Unauthenticated as error:
        return {"user": {}, "error": error.detail}
    return {
        "authenticated": True,
        "user": user_info(reviewed.user),
        "audiences": list(reviewed.audiences),
    }


def user_info(user: User) -> dict[str, Json]:
    """A user as Kubernetes' UserInfo."""
    info: dict[str, Json] = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    info["groups"] = list(user.all_groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra}
    return info


_ANSWERS: Final[Mapping[str, Callable[[_Question], Json]]] = {
    "SelfSubjectAccessReview": _self_access,
    "SubjectAccessReview": _access,
    "LocalSubjectAccessReview": _local_access,
    "SelfSubjectRulesReview": _rules,
    "SelfSubjectReview": _self,
    "TokenReview": _token,
}


def _raise_invalid(violations: list[Violation]) -> None:
    if violations:
        raise Invalid(violations)


def _attribute_violations(spec: Mapping[str, Json]) -> Iterator[Violation]:
    resource, path = spec.get(_RESOURCE), spec.get(_PATH)
    if resource is not None and path is not None:
        yield _invalid(f"spec.{_PATH}", path, f"cannot be specified in combination with {_RESOURCE}")
    if resource is None and path is None:
        yield _invalid(f"spec.{_RESOURCE}", None, f"exactly one of {_PATH} or {_RESOURCE} must be specified")


def _subject_violations(spec: Mapping[str, Json]) -> Iterator[Violation]:
    yield from _attribute_violations(spec)
    if not spec.get("user") and not spec.get("groups"):
        yield _invalid("spec.user", "", "at least one of user or group must be specified")


def _metadata_violations(document: Mapping[str, Json]) -> Iterator[Violation]:
    metadata = _mapping(document, "metadata", "")
    if any(value for name, value in metadata.items() if name != "managedFields"):
        yield _invalid("metadata", metadata, "must be empty")


def _local_violations(document: Mapping[str, Json], spec: Mapping[str, Json]) -> Iterator[Violation]:
    metadata = _mapping(document, "metadata", "")
    if any(value for name, value in metadata.items() if name not in ("managedFields", "namespace")):
        yield _invalid("metadata", metadata, "must be empty except for namespace")
    if spec.get(_RESOURCE) is not None:
        namespace = _text(_mapping(spec, _RESOURCE, "spec."), "namespace")
        if namespace != _text(metadata, "namespace"):
            field = f"spec.{_RESOURCE}.namespace"
            yield _invalid(field, namespace, "must match metadata.namespace")
    if spec.get(_PATH) is not None:
        yield _invalid(f"spec.{_PATH}", spec[_PATH], "disallowed on this kind of request")


def _invalid(field: str, value: Json, words: str) -> Violation:
    encoded = json.dumps(value, separators=(",", ":"))
    return Violation(field, f"Invalid value: {encoded}: {words}", "invalid")


def _mapping(document: Mapping[str, Json], name: str, under: str) -> Mapping[str, Json]:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"{under}{name} must be an object")
    return value or {}


def _text(document: Mapping[str, Json], name: str) -> str:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name} must be a string")
    return value or ""


def _texts(document: Mapping[str, Json], name: str) -> tuple[str, ...]:
    value = document.get(name) or []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise BadRequest(f"{name} must be a list of strings")
    return tuple(value)
