"""Shown: stored objects as bytes of the plain form, made once per revision and joined as often as asked."""

import msgspec

from koguma.model import forms
from koguma.model.kind import Kinds
from koguma.model.resource import Resource

_KEPT_MAX = 100_000


class Shown:
    """The bytes of each object's newest revision that somebody asked for."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._made: dict[str, tuple[int, bytes]] = {}  # by uid: a text knows its hash, a key makes it anew

    def bytes(self, resource: Resource) -> bytes:
        """The object in the plain form."""
        made = self._made.get(resource.uid)
        if made is not None and made[0] == resource.revision:
            return made[1]
        data = msgspec.json.encode(forms.plain(resource, self._kinds[resource.kind]))
        if len(self._made) >= _KEPT_MAX:  # mostly of objects that are gone; those that live come back
            self._made.clear()
        self._made[resource.uid] = (resource.revision, data)
        return data
