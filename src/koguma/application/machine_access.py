"""Machine access: whoever makes proxies use files or sockets of their machines needs a right for it.

It is the verb `use` on `proxyfiles` in the group koguma.io, with the path as the name: of a file that Envoy
writes, or of a unix socket that it connects to (that of a container runtime is as good as root). As with
Secrets, what was there may stay when somebody else writes the object. Types say which fields name such paths.
The machine has the last word on files: a proxy allows directories, and no right opens another one.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from koguma.access.authorizer import Attempt
from koguma.access.user import User
from koguma.application.context import Context
from koguma.envoy.external import UNIX
from koguma.kube import namespaced_names
from koguma.kube.rbac_defaults import PROXY_FILES, USE
from koguma.kube.registry import KOGUMA
from koguma.model import typed_parts
from koguma.model.kind import Kind
from koguma.model.overlay import STREAMS
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.typed_parts import PROXY_ADDRESS, PROXY_FILE

_FILES: Final[typed_parts.PartTypes] = frozenset({PROXY_FILE})
_ADDRESSES: Final[typed_parts.PartTypes] = frozenset({PROXY_ADDRESS})


def check(context: Context, user: User | None, written: Resource, before: Resource | None) -> None:
    """Raise Forbidden where a writer names a file or a socket of proxies' machines and may not.

    `user` is None where the control plane itself writes.
    """
    kind = context.kinds[written.kind]
    if user is None or not typed_parts.holds(kind.spec, _FILES | _ADDRESSES, kind.named_types):
        return
    known = set(_uses(kind, before.spec).values()) if before is not None else set()
    for field, use in _uses(kind, written.spec).items():
        if use in known:
            continue
        namespace = namespaced_names.namespaced_name(written, kind, context.control_plane).namespace
        attempt = Attempt(USE, PROXY_FILES, use.path, written.mesh, KOGUMA, namespace=namespace)
        if not context.access.allows(user, attempt):
            words = (
                f'user "{user}" cannot make proxies {use.verb} "{use.path}" ({field} of {written.key}): that'
                f" needs the right to {attempt}"
            )
            raise context.access.refusal(user, attempt, words)


class _Use(NamedTuple):
    """What a proxy would do with which path of its machine."""

    verb: str
    path: str


def _uses(kind: Kind, spec: Json) -> dict[str, _Use]:
    """What an object makes proxies do on their machines, by the field that says it."""
    return dict(_named(kind, kind.clean(spec), "" if kind.inline else "spec"))


def _named(kind: Kind, spec: Json, root: str) -> Iterator[tuple[str, _Use]]:
    for file in typed_parts.parts_of(kind.spec, spec, _FILES, root, kind.named_types):
        if file.value not in STREAMS:
            yield file.path, _Use("write", str(file.value))
    for address in typed_parts.parts_of(kind.spec, spec, _ADDRESSES, root, kind.named_types):
        if str(address.value).startswith(UNIX):
            yield address.path, _Use("connect to", str(address.value).removeprefix(UNIX))
