"""Revocations: the secrets that list the ids of revoked tokens."""

import base64
import binascii
from typing import Any, Final, NamedTuple

import click

from koguma.cli import claims
from koguma.cli.client import ApiClient, ApiResponse, Json
from koguma.cli.failures import ApiError, CommandFailure
from koguma.cli.kind_lookup import KindInfo
from koguma.cli.objects import ObjectName
from koguma.identity.claims import DATAPLANE, SERVICE_ACCOUNT, USER, ZONE, Purpose

_PURPOSES: Final[dict[str, Purpose[Any]]] = {
    purpose.name: purpose for purpose in (USER, DATAPLANE, ZONE, SERVICE_ACCOUNT)
}
_SECRET: Final = KindInfo("Secret", "secrets")
_GLOBAL_SECRET: Final = KindInfo("GlobalSecret", "globalsecrets", is_mesh_scoped=False)
_TRIES: Final = 5
_NOT_FOUND: Final = 404
_CONFLICTS: Final = (409, 412)  # somebody created or wrote the secret since we read it


class Revocation(NamedTuple):
    """A token to revoke."""

    purpose: Purpose[Any]
    jti: str
    mesh: str = ""

    @property
    def secret(self) -> ObjectName:
        """The secret that lists it."""
        kind = _SECRET if self.purpose.is_per_mesh else _GLOBAL_SECRET
        return ObjectName(kind, self.mesh, self.purpose.revocations_name(self.mesh))


def parse(word: str, text: str, mesh: str | None) -> Revocation:
    """The revocation of a token, given by itself or by its id and mesh."""
    purpose = _PURPOSES[word]
    jti = text
    if claims.is_token(text):
        _, decoded = claims.decoded(text)
        if claims.purpose(decoded) != word:
            raise CommandFailure(f"this is a {claims.purpose(decoded)} token, not a {word} token")
        jti, mesh = str(decoded.get("jti") or ""), mesh or str(decoded.get("Mesh") or "") or None
    if not jti or any(c in ", \n" for c in jti):
        raise CommandFailure("this is neither a token with an id (jti) nor an id")
    if purpose.is_per_mesh and not mesh:
        raise click.UsageError("name the mesh of the token with --mesh")
    return Revocation(purpose, jti, (mesh or "") if purpose.is_per_mesh else "")


def revoke(client: ApiClient, revocation: Revocation) -> bool:
    """Add a token to its list, by compare-and-swap; returns whether it was not in the list before."""
    for tries_left in reversed(range(_TRIES)):
        stored = _stored(client, revocation.secret)
        listed = _listed(revocation.secret, stored)
        if revocation.jti in listed:
            return False
        try:
            _write(client, revocation.secret, stored, [*listed, revocation.jti])
        except ApiError as error:
            if error.status not in _CONFLICTS or not tries_left:
                raise error.about(str(revocation.secret)) from None
        else:
            return True
    raise AssertionError("the last try returns or raises")


def _stored(client: ApiClient, secret: ObjectName) -> ApiResponse | None:
    try:
        return client.get(secret.path)
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return None  # a mesh that does not exist is an error of the write


def _listed(secret: ObjectName, stored: ApiResponse | None) -> list[str]:
    data = (stored.object.get("data") or "") if stored is not None else ""
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise CommandFailure(
            f"{secret} holds no list of ids; look at it, and delete it if it is no use"
        ) from None
    return [part.strip() for part in text.replace("\n", ",").split(",") if part.strip()]


def _write(client: ApiClient, secret: ObjectName, stored: ApiResponse | None, ids: list[str]) -> None:
    data = base64.b64encode(",".join(ids).encode()).decode()
    body: Json = {"type": secret.kind.name, "name": secret.name, "data": data}
    if secret.kind.is_mesh_scoped:
        body["mesh"] = secret.mesh
    if stored is None:
        condition = {"If-None-Match": "*"}
    else:
        body["labels"] = stored.object.get("labels") or {}
        condition = {"If-Match": stored.etag}
    client.send("PUT", secret.path, body=body, headers=condition)
