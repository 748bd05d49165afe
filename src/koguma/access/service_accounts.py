"""Service accounts: the users that their tokens stand for, and whether such a token still holds.

A token names its account by uid, and perhaps a Secret. It ends with either of them: one that is deleted and
created again under the same name has another uid.
"""

from typing import Final

from koguma.access.user import User, authenticated
from koguma.identity.claims import ClaimedObject, ServiceAccountClaims
from koguma.kube.kinds import core
from koguma.model.errors import Unauthenticated
from koguma.model.resource import Key, Resource
from koguma.store.state import State

GROUP: Final = "system:serviceaccounts"
_CREDENTIAL: Final = "authentication.kubernetes.io/credential-id"


def account_key(namespace: str, name: str) -> Key:
    """Where a ServiceAccount is stored."""
    return Key(core.SERVICE_ACCOUNT.stored_as, "", "", namespace, name)


def secret_key(namespace: str, name: str) -> Key:
    """Where a Secret of the core group is stored."""
    return Key(core.SECRET.stored_as, "", "", namespace, name)


def user_name(namespace: str, name: str) -> str:
    """The name of a service account's user."""
    return f"system:serviceaccount:{namespace}:{name}"


def user_of(claims: ServiceAccountClaims) -> User:
    """The user that a verified token stands for."""
    account = claims.account
    name = user_name(account.namespace, account.serviceaccount.name)
    user = authenticated(name, (GROUP, f"{GROUP}:{account.namespace}"))
    return User(user.name, user.groups, account.serviceaccount.uid, ((_CREDENTIAL, (f"JTI={claims.jti}",)),))


def check(state: State, claims: ServiceAccountClaims) -> None:
    """Raise Unauthenticated once the account of a token, or the Secret that it is bound to, is gone."""
    account = claims.account
    key = account_key(account.namespace, account.serviceaccount.name)
    if not _is_there(state.get(key), account.serviceaccount):
        raise Unauthenticated(
            "the service account of the token has been deleted; `kubectl create token` again"
        )
    if account.secret is not None:
        secret = state.get(secret_key(account.namespace, account.secret.name))
        if not _is_there(secret, account.secret):
            raise Unauthenticated("the Secret that the token is bound to has been deleted")


def _is_there(stored: Resource | None, claimed: ClaimedObject) -> bool:
    return stored is not None and stored.uid == claimed.uid and not stored.meta.deletion_timestamp
