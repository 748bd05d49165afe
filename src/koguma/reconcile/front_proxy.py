"""Front proxy: the certificate by which aggregated servers know that a request is from this control plane.

All control planes of a store share the CA, which is kept in a Secret; each issues itself a client
certificate. Servers find what they need to trust in the ConfigMap where Kubernetes' servers look for it. Both
are made when the first APIService needs them.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Final

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap, namespaces
from koguma.application.context import Context
from koguma.identity import certificates
from koguma.identity.certificates import KeyPair
from koguma.kube import aggregation
from koguma.kube.kinds import core, parts
from koguma.model.errors import Unavailable
from koguma.model.redacted import Redacted
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.contract import Ensure, Put, Transaction

CLIENT_NAME: Final = "koguma-front-proxy"
AUTHORITY_SECRET: Final = "koguma-front-proxy-ca"  # noqa: S105 - its name
TRUST_NAMESPACE: Final = "kube-system"
TRUST_CONFIG_MAP: Final = "extension-apiserver-authentication"
_REASON: Final = "aggregation"


class FrontProxy:
    """Keeps the certificate, and tells servers whom to trust."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._clock = clock
        self._issued: tuple[str, KeyPair] | None = None  # with the CA that issued it

    async def prepare(self) -> None:
        """Make sure that there is a CA, that it can be found, and that our own certificate is valid."""
        authority = self._stored_authority()
        if authority is None:
            await self._write_authority()
            authority = self._stored_authority()
        if authority is None:
            raise Unavailable("another control plane writes the CA of the front proxy right now")
        await self._publish(authority)
        issued = self._issued
        if (
            issued is None
            or issued[0] != authority.certificate
            or certificates.needs_renewal(issued[1].certificate, self._clock())
        ):
            pair = certificates.make_client(authority, CLIENT_NAME, self._clock())
            self._issued = (authority.certificate, pair)
            self._context.calls.identify(pair.certificate, pair.key)

    @property
    def _authority_key(self) -> Key:
        return Key(
            core.SECRET.stored_as, "", "", self._context.control_plane.system_namespace, AUTHORITY_SECRET
        )

    def _stored_authority(self) -> KeyPair | None:
        resource = self._context.state.get(self._authority_key)
        data = parts.as_map(resource.spec.get("data")) if resource else {}
        certificate, key = parts.payload(data.get("tls.crt")), parts.payload(data.get("tls.key"))
        if not certificate or not key:
            return None
        pair = KeyPair(certificate.decode(errors="replace"), Redacted(key.decode(errors="replace")))
        return None if any(certificates.problems(pair.certificate, pair.key, self._clock())) else pair

    async def _write_authority(self) -> None:
        """Write a new CA, over one that cannot be used; the first control plane wins."""
        pair = certificates.make_authority(certificates.make_key(), self._clock())
        data = {
            "tls.crt": parts.encoded(pair.certificate.encode()),
            "tls.key": parts.encoded(pair.key.reveal().encode()),
        }
        secret = _native(self._authority_key, {"type": "kubernetes.io/tls", "data": data})
        before = self._context.state.entry(secret.key)
        operations = (
            Ensure(namespaces.new_namespace(secret.namespace)),
            Put(secret, before.revision if before else 0),
        )
        await compare_and_swap.written_if_first(self._context.store, Transaction(operations, SYSTEM, _REASON))

    async def _publish(self, authority: KeyPair) -> None:
        key = Key(core.CONFIG_MAP.stored_as, "", "", TRUST_NAMESPACE, TRUST_CONFIG_MAP)
        data = {
            "requestheader-client-ca-file": authority.certificate,
            "requestheader-allowed-names": json.dumps([CLIENT_NAME]),
            "requestheader-username-headers": json.dumps([aggregation.USER_HEADER]),
            "requestheader-uid-headers": json.dumps([aggregation.UID_HEADER]),
            "requestheader-group-headers": json.dumps([aggregation.GROUP_HEADER]),
            "requestheader-extra-headers-prefix": json.dumps([aggregation.EXTRA_PREFIX]),
        }
        stored = self._context.state.get(key)
        if stored is not None and stored.spec.get("data") == data:
            return
        operations = (
            Ensure(namespaces.new_namespace(TRUST_NAMESPACE)),
            Put(_native(key, {"data": data}), stored.revision if stored else 0),
        )
        await compare_and_swap.written_if_first(self._context.store, Transaction(operations, SYSTEM, _REASON))


def _native(key: Key, spec: Json) -> Resource:
    return Resource(
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        core_name=f"{key.name}.{key.namespace}",
        spec=spec,
    )
