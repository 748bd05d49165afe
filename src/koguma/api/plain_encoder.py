"""Plain encoder: stored objects as JSON bytes of the plain form, cached per revision."""

import msgspec

from koguma.access.user import User
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.model import forms
from koguma.model.resource import Resource

_KEPT_MAX = 100_000


class PlainEncoder:
    """The bytes of each object's newest revision that somebody asked for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, tuple[int, bytes]] = {}  # by uid: a text knows its hash, a key makes it anew

    def bytes(self, resource: Resource, user: User) -> bytes:
        """The object in the plain form, as a user may see it. What holds secrets is not kept."""
        made = self._made.get(resource.uid)
        if made is not None and made[0] == resource.revision:
            return made[1]
        context, kind = self._context, self._context.kinds[resource.kind]
        if inline_secrets.with_placeholders(context, resource) is not resource:
            return msgspec.json.encode(forms.plain(inline_secrets.visible(context, user, resource), kind))
        data = msgspec.json.encode(forms.plain(resource, kind))
        if len(self._made) >= _KEPT_MAX:  # mostly of objects that are gone; those that live come back
            self._made.clear()
        self._made[resource.uid] = (resource.revision, data)
        return data
