"""Inline secrets: keys that stand in an object itself are seen only by who may read Secrets of its mesh.

Kuma takes `inline` and `inlineString` where it takes the name of a Secret, in kinds that `view` may read. To
everybody else such a text is shown as a placeholder, in every form and also in the copy of the object that
`kubectl apply` keeps in an annotation. The schema's types say which texts are secret.

A placeholder may be written back: `kubectl edit` and a GET with a PUT after it keep what is stored. It
carries a keyed hash of its text, so that entries of a list may change places. One that stands for nothing in
the stored object is refused. A JSON patch sees placeholders too, since its `copy` could move a key elsewhere.
"""

import hmac
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from koguma.access.authorizer import REST_GROUP, Attempt
from koguma.access.user import User
from koguma.application.context import Context
from koguma.kube import namespaced_names
from koguma.kube.registry import KOGUMA, KUMA
from koguma.model import placeholder, reserved_secrets, typed_parts
from koguma.model.forms import Draft
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.typed_parts import SENSITIVE, SecretPart
from koguma.model.violation import Violation

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SENSITIVE: Final[typed_parts.PartTypes] = frozenset({SENSITIVE})
_GROUPS: Final = (REST_GROUP, KUMA, KOGUMA)
_UNKNOWN: Final = (
    "is the placeholder of a text that you may not read, and the stored object has no such text here;"
    " write the text itself, or refer to a Secret"
)


def visible(context: Context, user: User, resource: Resource) -> Resource:
    """The object as a user may see it: itself, or with placeholders for secret texts."""
    hidden = with_placeholders(context, resource)
    return resource if hidden is resource or may_read(context, user, resource) else hidden


def with_placeholders(context: Context, resource: Resource) -> Resource:
    """The object without its secret texts; the same object where it has none."""
    kind = context.kinds.by_name.get(resource.kind)
    if kind is None or not may_hold(kind):
        return resource
    replace = _placeholders(context)
    spec, annotations = resource.spec, resource.annotations
    if any(part.value for part in typed_parts.parts_of(kind.spec, spec, _SENSITIVE, named=kind.named_types)):
        spec = typed_parts.secrets_replaced(kind.spec, spec, replace, named=kind.named_types)
    applied = annotations.get(LAST_APPLIED)
    if applied is not None:
        annotations = {**annotations, LAST_APPLIED: _copy_replaced(kind, applied, replace)}
    if spec is resource.spec and annotations == resource.annotations:
        return resource
    return msgspec.structs.replace(resource, spec=spec, annotations=annotations)


def may_read(context: Context, user: User, resource: Resource) -> bool:
    """Whether a user may read every Secret of the object's mesh, in any of the groups that serve them."""
    kind = context.kinds["Secret"]
    mesh = resource.name if resource.kind == "Mesh" else resource.mesh
    any_secret = Resource(kind=kind.name, mesh=mesh, name="any", core_name="any")
    namespace = namespaced_names.namespaced_name(any_secret, kind, context.control_plane).namespace
    attempts = (Attempt("get", kind.plural, "", mesh, group, namespace=namespace) for group in _GROUPS)
    return any(context.access.allows(user, attempt) for attempt in attempts)


def restored(context: Context, draft: Draft, before: Resource | None) -> Draft:
    """What a writer means: where it gives a placeholder back, the text that is stored there."""
    if before is None or not may_hold(draft.kind):
        return draft
    kind, replace = draft.kind, _stored_texts(context, draft.kind, before)
    spec = typed_parts.secrets_replaced(kind.spec, draft.spec, replace, named=kind.named_types)
    annotations = draft.annotations
    if annotations is not None and LAST_APPLIED in annotations:
        applied = _copy_replaced(kind, annotations[LAST_APPLIED], replace)
        annotations = {**annotations, LAST_APPLIED: applied}
    return msgspec.structs.replace(draft, spec=spec, annotations=annotations)


def restored_spec(context: Context, kind: Kind, spec: Json, before: Resource) -> Json:
    """The same for a spec alone."""
    if not may_hold(kind):
        return spec
    replace = _stored_texts(context, kind, before)
    return typed_parts.secrets_replaced(kind.spec, spec, replace, named=kind.named_types)


def violations(kind: Kind, spec: Json) -> Iterator[Violation]:
    """Placeholders that stand for nothing, in what is to be stored."""
    if not may_hold(kind):
        return
    root = "" if kind.inline else "spec"
    for part in typed_parts.parts_of(kind.spec, spec, _SENSITIVE, root, kind.named_types):
        if isinstance(part.value, str) and placeholder.is_placeholder(part.value):
            yield Violation(part.path, _UNKNOWN, "placeholder")


def texts(context: Context, resource: Resource) -> frozenset[str]:
    """The secret texts of an object."""
    kind = context.kinds[resource.kind]
    parts = typed_parts.parts_of(kind.spec, resource.spec, _SENSITIVE, named=kind.named_types)
    return frozenset(part.value for part in parts if isinstance(part.value, str) and part.value)


def may_hold(kind: Kind) -> bool:
    """Whether objects of a kind can have secret texts, and may be read by who may not read Secrets."""
    return not kind.admin_only and typed_parts.holds(kind.spec, _SENSITIVE, kind.named_types)


def _placeholders(context: Context) -> Callable[[SecretPart], str]:
    key = _hash_key(context)

    def replace(part: SecretPart) -> str:
        if not part.text or placeholder.is_placeholder(part.text):
            return part.text
        digest = hmac.digest(key, part.text.encode(), "sha256").hex()
        return placeholder.of_hash(digest, is_base64=part.is_base64)

    return replace


def _hash_key(context: Context) -> bytes:
    """A key that all control planes of a store share, so that nobody can try out texts by their hash."""
    names = ((secret.core_name, secret) for secret in context.state.listed("GlobalSecret"))
    for name, secret in sorted(names, key=lambda pair: pair[0]):
        if reserved_secrets.is_reserved(name):
            return f"inline secrets {secret.spec.get('data')}".encode()
    return context.about.cluster_id().encode()


def _stored_texts(context: Context, kind: Kind, stored: Resource) -> Callable[[SecretPart], str]:
    """What gives the secret texts of a stored object for their placeholders."""
    hidden = _placeholders(context)
    texts: dict[tuple[str, str], str] = {}  # by purpose and placeholder

    def note(part: SecretPart) -> str:
        texts[_purpose(part), hidden(part)] = part.text
        return part.text

    typed_parts.secrets_replaced(kind.spec, stored.spec, note, named=kind.named_types)
    _copy_replaced(kind, stored.annotations.get(LAST_APPLIED, ""), note)
    return lambda part: texts.get((_purpose(part), part.text), part.text)


def _purpose(part: SecretPart) -> str:
    """The field for which a text is: not its entry in a list, nor which of its spellings holds it.

    In another version of the API, `tls.verification.clientKey.inlineString` is `tls.clientKey.inlineString`.
    """
    fields = re.sub(r"\[[^\]]*\]", "", part.path).split(".")
    is_nested = fields[-1] == "value" and len(fields) > 2  # noqa: PLR2004 - insecureInline.value
    return ".".join(fields[-3:] if is_nested else fields[-2:])


def _copy_replaced(kind: Kind, applied: str, replace: Callable[[SecretPart], str]) -> str:
    """The copy of an object that kubectl keeps, with other secret texts."""
    try:
        document = msgspec.json.decode(applied)
    except (msgspec.DecodeError, RecursionError):
        return replace(SecretPart(LAST_APPLIED, applied, is_base64=False)) if applied else applied
    spec = document.get("spec") if isinstance(document, dict) else None
    changed = typed_parts.secrets_replaced(kind.spec, spec, replace, named=kind.named_types)
    if changed == spec:
        return applied
    return msgspec.json.encode({**document, "spec": changed}).decode() + "\n"
