"""Tokens of service accounts: TokenRequest, and what others need to verify such tokens (OIDC discovery).

They are signed with keys in the store, as all tokens are, so that every control plane on it knows them. Who
may `create` the subresource `token` of an account can be that account, whatever it may do.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from aiohttp import web

from koguma.access import service_accounts
from koguma.access.authorizer import Attempt, denied
from koguma.access.token_keys import AUDIENCE, TokenKeys
from koguma.access.user import SYSTEM
from koguma.api.call import Call
from koguma.api.kube import bodies, options
from koguma.api.kube.answers import encoded_response
from koguma.api.kube.reviews import Verify
from koguma.api.kube.status import TargetedError
from koguma.api.kube.target import RequestTarget, check
from koguma.application import compare_and_swap, transactions
from koguma.application.context import Context
from koguma.identity import tokens
from koguma.identity.claims import SERVICE_ACCOUNT, ClaimedObject, ServiceAccountClaim, ServiceAccountClaims
from koguma.identity.signing_keys import FIRST_SERIAL, KeyRing
from koguma.kube import codec, endpoints
from koguma.kube.kinds import reviews
from koguma.kube.kinds.reviews import BoundObjectReference, TokenRequestSpec
from koguma.model.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound
from koguma.model.kind import ValidationContext
from koguma.model.resource import Resource
from koguma.model.schema import UNKNOWN, Json
from koguma.store.contract import Put, Transaction, rfc3339

_KEYS_PATH: Final = "/openid/v1/jwks"
_JSON: Final = "application/json"
_KEY_SET: Final = "application/jwk-set+json"
# Kinds of Kubernetes to which a token can be bound, and of which there are none here.
_ABSENT: Final[Mapping[str, str]] = {"Pod": "pods", "Node": "nodes"}


class AccountTokens:
    """Handlers of `serviceaccounts/<name>/token`, and of the pages that describe the issuer."""

    def __init__(
        self,
        context: Context,
        keys: TokenKeys,
        verify: Verify,
        clock: Callable[[], datetime],
        issuer: str,
    ) -> None:
        self.verify = verify  # every token, for TokenReviews
        self._context = context
        self._keys = keys
        self._clock = clock
        self._issuer = issuer.rstrip("/")

    async def create(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """A token of a service account."""
        check(self._context, call.user, target, "create")
        is_dry = options.of_write(call).is_dry
        document = codec.typed((await bodies.document(call)).value, endpoints.TOKEN_REQUEST)
        spec = self._spec(document, target)
        account = self._context.state.get(service_accounts.account_key(target.where, target.name))
        if account is None:
            raise NotFound
        claims = ServiceAccountClaims(
            aud=spec.audiences or (AUDIENCE, self._issuer),
            iss=self._issuer,
            sub=service_accounts.user_name(account.namespace, account.name),
            account=ServiceAccountClaim(
                account.namespace,
                ClaimedObject(account.name, account.uid),
                self._bound(account.namespace, spec.bound_object_ref),
            ),
        )
        now = self._clock()
        lifetime = timedelta(seconds=spec.expiration_seconds or reviews.TOKEN_SECONDS)
        token = "" if is_dry else tokens.issue(await self._ring(), claims, lifetime, now).reveal()
        answer = {
            **document,
            "metadata": {
                "name": account.name,
                "namespace": account.namespace,
                "creationTimestamp": rfc3339(now),
            },
            "spec": {
                **(document.get("spec") or {}),
                "audiences": list(claims.aud),
                "expirationSeconds": int(lifetime.total_seconds()),
            },
            "status": {"token": token, "expirationTimestamp": rfc3339(now + lifetime)},
        }
        response = encoded_response(msgspec.json.encode(answer), 201)
        response.headers["Cache-Control"] = "no-store"
        return response

    def _spec(self, document: Mapping[str, Json], target: RequestTarget) -> TokenRequestSpec:
        kind = reviews.TOKEN_REQUEST
        metadata = document.get("metadata") or {}
        for name, expected in (("name", target.name), ("namespace", target.where)):
            if isinstance(metadata, dict) and metadata.get(name) not in (None, "", expected):
                raise BadRequest(f"the {name} of the object does not match the one in the path ({expected})")
        written = document.get("spec") or {}
        about = ValidationContext(control_plane=self._context.control_plane, name=target.name)
        violations = [each for each in kind.violations(written, about) if each.rule != UNKNOWN]
        if violations:
            request = RequestTarget(endpoints.TOKEN_REQUEST, target.namespace, target.name)
            raise TargetedError(Invalid(violations), request)
        spec: TokenRequestSpec = kind.read(kind.clean(written))
        return spec

    def _bound(self, namespace: str, reference: BoundObjectReference | None) -> ClaimedObject | None:
        """The Secret that a token is to end with."""
        if reference is None:
            return None
        name, absent = reference.name or "", _ABSENT.get(reference.kind or "")
        if absent:
            raise NotFound(f'{absent} "{name}" not found')
        if (reference.api_version, reference.kind) != ("v1", "Secret"):
            what = f"{reference.api_version}, Kind={reference.kind}"
            raise BadRequest(f"cannot bind token for object of type {what}; only Secrets of v1 can be bound")
        secret = self._context.state.get(service_accounts.secret_key(namespace, name))
        if secret is None or secret.meta.deletion_timestamp:
            raise NotFound(f'secrets "{name}" not found')
        return ClaimedObject(secret.name, _same_uid(secret, reference.uid))

    async def _ring(self) -> KeyRing[ServiceAccountClaims]:
        """The keys of service accounts' tokens; the first request for one makes the first key."""
        ring = self._keys.ring(SERVICE_ACCOUNT)
        if ring.signer is None:
            context = self._context
            data = await asyncio.to_thread(context.signing_key)  # RSA takes tens of milliseconds
            name = SERVICE_ACCOUNT.key_name(FIRST_SERIAL)
            secret = transactions.control_plane_object(
                context, {"type": "GlobalSecret", "name": name, "data": data}
            )
            transaction = Transaction((Put(secret, 0),), SYSTEM, "first token of a service account")
            await compare_and_swap.written_if_first(context.store, transaction)
            ring = self._keys.ring(SERVICE_ACCOUNT)
        return ring

    async def configuration(self, call: Call) -> web.StreamResponse:
        """OIDC discovery: who issues the tokens, and where the keys are."""
        self._check(call)
        return _page(
            {
                "issuer": self._issuer,
                "jwks_uri": f"{self._issuer}{_KEYS_PATH}",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            },
            _JSON,
        )

    async def key_set(self, call: Call) -> web.StreamResponse:
        """The public keys that verify tokens of service accounts (RFC 7517)."""
        self._check(call)
        ring = await self._ring()
        numbers = {serial: key.public_numbers() for serial, key in sorted(ring.verifiers.items())}
        keys = [
            {
                "use": "sig",
                "kty": "RSA",
                "kid": serial,
                "alg": "RS256",
                "n": _encoded(number.n),
                "e": _encoded(number.e),
            }
            for serial, number in numbers.items()
        ]
        return _page({"keys": keys}, _KEY_SET)

    def _check(self, call: Call) -> None:
        attempt = Attempt("get", path=call.request.path)
        if not self._context.access.allows(call.user, attempt):
            raise Forbidden(denied(call.user, attempt))


def _same_uid(stored: Resource, uid: str | None) -> str:
    if uid and uid != stored.uid:
        raise Conflict(
            f"the UID in the bound object reference ({uid}) does not match the UID in record. The object"
            " might have been deleted and then recreated"
        )
    return stored.uid


def _encoded(number: int) -> str:
    data = number.to_bytes((number.bit_length() + 7) // 8)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _page(document: Json, content_type: str) -> web.Response:
    headers = {"Content-Type": content_type, "Cache-Control": "public, max-age=3600"}
    return web.Response(body=msgspec.json.encode(document), headers=headers)
