"""Tokens: issues and reviews tokens of users, proxies and zones.

Signing keys and revocation lists are secrets in the store, so every control plane on it agrees at once.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from aiohttp import web

from koguma.access import service_accounts
from koguma.access.authorizer import Attempt
from koguma.access.token_keys import TokenKeys
from koguma.api.call import Call, answer, answer_json
from koguma.application.context import Context
from koguma.identity import token_advice, token_requests, tokens
from koguma.identity.claims import DATAPLANE, SERVICE_ACCOUNT, USER, ZONE, C, ServiceAccountClaims
from koguma.identity.signing_keys import KeyRing
from koguma.identity.token_advice import UnverifiedToken
from koguma.model.errors import BadRequest, Forbidden, NotAllowed, Unauthenticated
from koguma.model.schema import Json

# The resource in access rules whose verb `create` is the right to issue tokens of a purpose.
_RESOURCES = {USER.name: "usertokens", DATAPLANE.name: "dataplanetokens", ZONE.name: "zonetokens"}


class TokenIssuer:
    """Handlers of `POST /tokens/...`."""

    def __init__(self, context: Context, keys: TokenKeys, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._keys = keys
        self._clock = clock

    async def user(self, call: Call) -> web.StreamResponse:
        """A token for a user of the API."""
        self._context.access.check(call.user, Attempt("create", "usertokens"), "action not allowed")
        request = token_requests.user_request(await _body(call))
        return self._answer(self._keys.ring(USER), request.claims, request.lifetime)

    async def dataplane(self, call: Call) -> web.StreamResponse:
        """A token for a proxy."""
        self._check_any(call, "dataplanetokens", "generate dataplane token")
        request = token_requests.dataplane_request(await _body(call))
        refusal = f'user "{call.user}" cannot generate dataplane token'
        attempt = Attempt("create", "dataplanetokens", mesh=request.mesh)
        self._context.access.check(call.user, attempt, refusal)
        return self._answer(self._keys.ring(DATAPLANE, request.mesh), request.claims, request.lifetime)

    async def zone(self, call: Call) -> web.StreamResponse:
        """A token for a zone control plane and its ingress and egress."""
        self._check_any(call, "zonetokens", "generate zone token")
        request = token_requests.zone_request(await _body(call))
        refusal = f"user \"{call.user}\" cannot generate zone token for zone '{request.zone}'"
        self._context.access.check(call.user, Attempt("create", "zonetokens", request.zone), refusal)
        if self._context.control_plane.federated and self._keys.ring(ZONE).signer is None:
            raise NotAllowed("tokens of zones are issued on Global; this zone can verify them, and no more")
        return self._answer(self._keys.ring(ZONE), request.claims, request.lifetime)

    async def review(self, call: Call) -> web.StreamResponse:
        """Whether a token is valid, and for what; needs the right to issue such tokens."""
        allowed = [purpose for purpose in _RESOURCES if self._may_issue_some(call, purpose)]
        if not allowed:
            words = f'user "{call.user}" cannot create tokens of any kind, so cannot ask about one'
            remedy = self._context.access.remedy(call.user, Attempt("create", _RESOURCES[DATAPLANE.name]))
            raise Forbidden(f"{words}; {remedy}")
        token = (await _body(call)).get("token")
        if not isinstance(token, str):
            raise BadRequest("the body must be a JSON object with a token as text", title="Invalid request")
        claimed = token_advice.unverified(token) or UnverifiedToken()
        review = {"purpose": claimed.purpose.name if claimed.purpose else "", "mesh": claimed.mesh}
        if claimed.purpose is None:
            return answer_json({**review, "valid": False, "reason": "it is no token of this control plane"})
        attempt = (
            Attempt("create", "tokenreviews", group="authentication.k8s.io")
            if claimed.purpose is SERVICE_ACCOUNT
            else Attempt("create", _RESOURCES[claimed.purpose.name], mesh=claimed.mesh)
        )
        refusal = f'user "{call.user}" cannot {attempt}, so cannot ask about such a token'
        self._context.access.check(call.user, attempt, refusal)
        if claimed.purpose.is_per_mesh and not claimed.mesh:
            return answer_json({**review, "valid": False, "reason": "token names no mesh"})
        try:
            claims = tokens.verify(self._keys.ring(claimed.purpose, claimed.mesh), token, self._clock())
            if isinstance(claims, ServiceAccountClaims):
                service_accounts.check(self._keys.state, claims)
        except Unauthenticated as error:
            return answer_json({**review, "valid": False, "reason": error.detail})
        return answer_json({**review, "valid": True, "reason": ""})

    def _may_issue_some(self, call: Call, purpose: str) -> bool:
        try:
            self._context.access.check_any(call.user, ("create",), _RESOURCES[purpose])
        except Forbidden:
            return False
        return True

    def _check_any(self, call: Call, resource: str, words: str) -> None:
        try:
            self._context.access.check_any(call.user, ("create",), resource)
        except Forbidden:
            remedy = self._context.access.remedy(call.user, Attempt("create", resource))
            raise Forbidden(f'user "{call.user}" cannot {words}; {remedy}') from None

    def _answer(self, ring: KeyRing[C], claims: C, lifetime: timedelta) -> web.Response:
        token = tokens.issue(ring, claims, lifetime, self._clock())
        headers = {"Cache-Control": "no-store"}
        return answer(token.reveal().encode(), headers=headers, content_type="text/plain")


async def _body(call: Call) -> Json:
    body = await call.document()
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", title="Invalid request")
    return body
