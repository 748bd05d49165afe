"""Revocations: the secrets that list the ids of tokens which no longer hold."""

import base64
import binascii
from typing import Any, Final, NamedTuple

import click

from koguma.cli import claims
from koguma.cli.client import Answer, Client, Json
from koguma.cli.failures import Failure, Refused
from koguma.cli.nouns import Noun
from koguma.cli.objects import Named
from koguma.identity.claims import DATAPLANE, USER, ZONE, Purpose

_PURPOSES: Final[dict[str, Purpose[Any]]] = {purpose.word: purpose for purpose in (USER, DATAPLANE, ZONE)}
_SECRET: Final = Noun("Secret", "secrets")
_GLOBAL_SECRET: Final = Noun("GlobalSecret", "globalsecrets", is_mesh_scoped=False)
_TRIES: Final = 5
_NOT_FOUND: Final = 404
_LOST_RACES: Final = (409, 412)  # it was created, or written, since we read it


class Revocation(NamedTuple):
    """A token to revoke."""

    purpose: Purpose[Any]
    jti: str
    mesh: str = ""

    @property
    def secret(self) -> Named:
        """The secret that lists it."""
        noun = _SECRET if self.purpose.is_meshed else _GLOBAL_SECRET
        return Named(noun, self.mesh, self.purpose.revocations_name(self.mesh))


def meant(word: str, text: str, mesh: str | None) -> Revocation:
    """Which token is meant by a token or its id, and a mesh."""
    purpose = _PURPOSES[word]
    jti = text
    if claims.is_token(text):
        _, said = claims.decoded(text)
        if claims.purpose(said) != word:
            raise Failure(f"this is a {claims.purpose(said)} token, not a {word} token")
        jti, mesh = str(said.get("jti") or ""), mesh or str(said.get("Mesh") or "") or None
    if not jti or any(c in ", \n" for c in jti):
        raise Failure("this is neither a token with an id (jti) nor an id")
    if purpose.is_meshed and not mesh:
        raise click.UsageError("name the mesh of the token with --mesh")
    return Revocation(purpose, jti, (mesh or "") if purpose.is_meshed else "")


def revoke(client: Client, revocation: Revocation) -> bool:
    """Add a token to its list, also while others write it; says whether it was not there before."""
    for tries_left in reversed(range(_TRIES)):
        stored = _stored(client, revocation.secret)
        listed = _listed(revocation.secret, stored)
        if revocation.jti in listed:
            return False
        try:
            _write(client, revocation.secret, stored, [*listed, revocation.jti])
        except Refused as refused:
            if refused.status not in _LOST_RACES or not tries_left:
                raise refused.about(str(revocation.secret)) from None
        else:
            return True
    raise AssertionError("the last try returns or raises")


def _stored(client: Client, secret: Named) -> Answer | None:
    try:
        return client.get(secret.path)
    except Refused as refused:
        if refused.status != _NOT_FOUND:
            raise
        return None  # a mesh that is not there is told when we write


def _listed(secret: Named, stored: Answer | None) -> list[str]:
    data = (stored.object.get("data") or "") if stored is not None else ""
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Failure(f"{secret} holds no list of ids; look at it, and delete it if it is no use") from None
    return [part.strip() for part in text.replace("\n", ",").split(",") if part.strip()]


def _write(client: Client, secret: Named, stored: Answer | None, ids: list[str]) -> None:
    data = base64.b64encode(",".join(ids).encode()).decode()
    body: Json = {"type": secret.noun.name, "name": secret.name, "data": data}
    if secret.noun.is_mesh_scoped:
        body["mesh"] = secret.mesh
    if stored is None:
        condition = {"If-None-Match": "*"}
    else:
        body["labels"] = stored.object.get("labels") or {}
        condition = {"If-Match": stored.etag}
    client.send("PUT", secret.path, body=body, headers=condition)
