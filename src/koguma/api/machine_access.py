"""Machine access: whoever makes proxies write a file on their machines needs a right of its own for it.

It is the verb `use` on `proxyfiles` in the group koguma.io, with the file's path as the name. As with
Secrets, what was there may stay when somebody else writes the object. Types say which fields name such files.
The machine has the last word: a proxy allows directories, and no right opens another one.
"""

from typing import Final

from koguma.api.access import Attempt
from koguma.api.context import Context
from koguma.api.user import User
from koguma.kube import places
from koguma.kube.rbac_defaults import PROXY_FILES, USE
from koguma.kube.registry import KOGUMA
from koguma.model import typed_parts
from koguma.model.kind import Kind
from koguma.model.overlay import STREAMS
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.typed_parts import PROXY_FILE, TypedPart

_FILES: Final[typed_parts.Sought] = frozenset({PROXY_FILE})


def check(context: Context, user: User | None, made: Resource, before: Resource | None) -> None:
    """Raise Forbidden where a writer names a file on machines of proxies and may not.

    `user` is None where the control plane itself writes.
    """
    kind = context.kinds[made.kind]
    if user is None or not typed_parts.holds(kind.spec, _FILES):
        return
    known = {each.value for each in _files(kind, before.spec)} if before is not None else set()
    for each in _files(kind, made.spec):
        if each.value in known or each.value in STREAMS:
            continue
        namespace = places.spot(made, kind, context.place).namespace
        attempt = Attempt(USE, PROXY_FILES, str(each.value), made.mesh, KOGUMA, namespace=namespace)
        if not context.access.allows(user, attempt):
            words = (
                f'user "{user}" cannot make proxies write "{each.value}" ({each.path} of {made.key}): that'
                f" needs the right to {attempt}"
            )
            raise context.access.refusal(user, attempt, words)


def _files(kind: Kind, spec: Json) -> tuple[TypedPart, ...]:
    root = "" if kind.inline else "spec"
    return tuple(typed_parts.found(kind.spec, kind.clean(spec), _FILES, root))
