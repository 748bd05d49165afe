"""Plain encoder: stored objects as JSON bytes of the plain form, cached per revision."""

import msgspec

from koguma.access.user import User
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.model import forms
from koguma.model.resource import Resource

_CACHED_MAX = 100_000


class PlainEncoder:
    """Encodes objects, and caches the bytes of the newest revision of each."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cached: dict[
            str, tuple[int, bytes]
        ] = {}  # by uid: Python caches the hash of a str, not of a Key

    def bytes(self, resource: Resource, user: User) -> bytes:
        """The object in the plain form, as a user may see it. Objects with inline secrets are not cached.

        Nor are computed ones, which change without a revision.
        """
        cached = self._cached.get(resource.uid)
        if cached is not None and cached[0] == resource.revision:
            return cached[1]
        context, kind = self._context, self._context.kinds[resource.kind]
        if inline_secrets.with_placeholders(context, resource) is not resource:
            return msgspec.json.encode(forms.plain(inline_secrets.visible(context, user, resource), kind))
        data = msgspec.json.encode(forms.plain(resource, kind))
        if kind.computed is not None:
            return data
        if len(self._cached) >= _CACHED_MAX:  # mostly deleted objects; live ones are encoded again
            self._cached.clear()
        self._cached[resource.uid] = (resource.revision, data)
        return data
