"""Token review: asks the control plane whether a token is valid; only it has the keys.

A user token is sent as the credential of a request; other tokens are reviewed with the credentials of a user
who may issue such tokens. Neither crosses the network unencrypted. Where no server can be asked, the verdict
says so.
"""

from collections.abc import Mapping
from typing import NamedTuple

from koguma.cli import options, target
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, CommandFailure
from koguma.model.redacted import Redacted

_UNAUTHENTICATED = 401
_CONNECT_SECONDS = 3.0


class Verdict(NamedTuple):
    """`valid` is None where no server could be asked; the reason says why."""

    valid: bool | None
    reason: str

    def __str__(self) -> str:
        word = "not checked" if self.valid is None else "yes" if self.valid else "no"
        return f"{word}: {self.reason}" if self.reason else word


def reviewed(connection: Mapping[str, str | None], token: str, purpose: str) -> Verdict:
    """The verdict of the control plane about a token."""
    try:
        with options.impatient_client(connection, _CONNECT_SECONDS) as client:
            with_token = client.target._replace(token=Redacted(token))
            target.check_protected(with_token)
            return _review_user(with_token) if purpose == "user" else _review_other(client, token)
    except CommandFailure as failure:
        return Verdict(None, failure.message)


def _review_user(with_token: target.ServerTarget) -> Verdict:
    client = ApiClient(with_token, _CONNECT_SECONDS)
    try:
        user = client.get("/who-am-i").object
    except ApiError as error:
        if error.status != _UNAUTHENTICATED:
            raise
        return Verdict(valid=False, reason=error.detail)
    finally:
        client.close()
    groups = ", ".join(map(str, user.get("groups") or ()))
    return Verdict(valid=True, reason=f"the control plane takes it for user {user.get('name')} in {groups}")


def _review_other(client: ApiClient, token: str) -> Verdict:
    answer = client.send("POST", "/tokens/_review", body={"token": token})
    valid = bool(answer.field("valid"))
    return Verdict(valid, str(answer.object.get("reason") or ""))
