"""Token review: whether a token holds, as the control plane says; only it has the keys.

A user's token is shown to the control plane as its user would; other tokens are asked about by somebody who
may issue such. Neither crosses the network unprotected. Where nobody can be asked, that is the answer.
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
    """`valid` is None where nobody could be asked; the reason says why."""

    valid: bool | None
    reason: str

    def __str__(self) -> str:
        word = "not checked" if self.valid is None else "yes" if self.valid else "no"
        return f"{word}: {self.reason}" if self.reason else word


def reviewed(connection: Mapping[str, str | None], token: str, purpose: str) -> Verdict:
    """What the control plane that these options name says of a token."""
    try:
        with options.impatient_client(connection, _CONNECT_SECONDS) as client:
            asking = client.target if purpose != "user" else client.target._replace(token=Redacted(token))
            target.check_protected(asking._replace(token=Redacted(token)))
            return _of_user(asking) if purpose == "user" else _of_other(client, token)
    except CommandFailure as failure:
        return Verdict(None, failure.message)


def _of_user(asking: target.ServerTarget) -> Verdict:
    client = ApiClient(asking, _CONNECT_SECONDS)
    try:
        found = client.get("/who-am-i").object
    except ApiError as error:
        if error.status != _UNAUTHENTICATED:
            raise
        return Verdict(valid=False, reason=error.detail)
    finally:
        client.close()
    groups = ", ".join(map(str, found.get("groups") or ()))
    return Verdict(valid=True, reason=f"the control plane takes it for user {found.get('name')} in {groups}")


def _of_other(client: ApiClient, token: str) -> Verdict:
    answer = client.send("POST", "/tokens/_review", body={"token": token})
    valid = bool(answer.field("valid"))
    return Verdict(valid, str(answer.object.get("reason") or ""))
