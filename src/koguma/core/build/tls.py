"""TLS between proxies: whether a mesh has it, and the contexts of both ends.

Certificates and the mesh's CAs are always sent as secrets of their own (SDS), never inside a listener or
cluster, so that they rotate without closing a connection.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import SECRET, Id
from koguma.model import names
from koguma.model.kri import ALL_MESHES, SecretName
from koguma.model.resource import Key
from koguma.model.schema import Json

ALPN: Final = "kuma"  # tells proxies of a mesh from programs that speak TLS themselves
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3"
_SNI_LENGTH_MAX: Final = 253

# Envoy as a client uses TLS 1.2 at most by default.
_CLIENT_VERSIONS: Final[Data] = {
    "tls_minimum_protocol_version": "TLSv1_2",
    "tls_maximum_protocol_version": "TLSv1_3",
}


class Mtls(msgspec.Struct, frozen=True):
    """How a mesh does mTLS."""

    backend: str
    is_permissive: bool = False


@question
def mtls(db: Db, mesh: str) -> Mtls | None:
    """How a mesh does mTLS; None where it is off."""
    resource = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    spec = (resource.spec.get("mtls") or {}) if resource else {}
    enabled = spec.get("enabledBackend")
    for backend in spec.get("backends") or ():
        if enabled and backend.get("name") == enabled:
            return Mtls(enabled, backend.get("mode") == "PERMISSIVE")
    return None


@question
def is_ready(db: Db, destination: Key) -> bool:
    """Whether all proxies of a service can be called over mTLS; only a permissive mesh asks."""
    resource = world.RESOURCES.get(db, destination)
    status = (resource.status or {}) if resource else {}
    return destination.kind != "MeshService" or (status.get("tls") or {}).get("status") == "Ready"


def identity_name(mesh: str) -> str:
    """The secret with a proxy's own certificate."""
    return str(SecretName("identity_cert", "secret", mesh))


def ca_name(mesh: str) -> str:
    """The secret with the CAs of a mesh."""
    return str(SecretName("mesh_ca", "secret", mesh))


def secrets(mesh: str, trusted: str = "") -> tuple[Id, ...]:
    """The secrets to which both ends of a connection between proxies refer, of one mesh or two."""
    return (SECRET, identity_name(mesh)), (SECRET, ca_name(trusted or mesh))


def _common(mesh: str, sans: Iterable[Data], trusted: str = "") -> Data:
    return {
        "tls_certificate_sds_secret_configs": [proto_json.sds(identity_name(mesh))],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": list(sans)},
            "validation_context_sds_secret_config": proto_json.sds(ca_name(trusted or mesh)),
        },
    }


def downstream(mesh: str) -> Data:
    """The TLS context of inbounds: callers need a certificate of the same mesh."""
    any_of_mesh = {"san_type": "URI", "matcher": {"prefix": f"spiffe://{mesh}/"}}
    return proto_json.typed(
        f"{_TLS}.DownstreamTlsContext",
        common_tls_context=_common(mesh, [any_of_mesh]),
        require_client_certificate=True,
    )


def downstream_of_all(mesh: str) -> Data:
    """The TLS context of a listener for all meshes: a caller needs a certificate of its own mesh."""
    return proto_json.typed(
        f"{_TLS}.DownstreamTlsContext",
        common_tls_context={
            "tls_certificate_sds_secret_configs": [proto_json.sds(identity_name(mesh))],
            "validation_context_sds_secret_config": proto_json.sds(ca_name(ALL_MESHES)),
        },
        require_client_certificate=True,
    )


def upstream(mesh: str, identities: Iterable[str], server_name: str, trusted: str = "") -> Data:
    """The TLS context of outbound clusters: endpoints need a certificate with one of these identities.

    It has to be of the caller's mesh, or of another one that is `trusted` instead.
    """
    # Without a matcher Envoy would accept every certificate of the mesh; no identity equals the bare prefix.
    named = tuple(identities) or (f"spiffe://{trusted or mesh}/",)
    sans = [{"san_type": "URI", "matcher": {"exact": each}} for each in named]
    context = proto_json.typed(
        f"{_TLS}.UpstreamTlsContext",
        common_tls_context={
            **_common(mesh, sans, trusted),
            "alpn_protocols": [ALPN],
            "tls_params": _CLIENT_VERSIONS,
        },
    )
    return {**context, "sni": server_name} if server_name else context


def socket(context: Json) -> Data:
    """A transport socket with a TLS context."""
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


@question
def server_name(db: Db, destination: Key, section: str) -> str:
    """The SNI by which zone proxies route to a port; empty where its parts are no DNS labels."""
    zoned = (destination.zone, destination.namespace) if destination.zone else ()
    short = world.kind_of(db, destination.kind).short
    parts = [short, destination.mesh, *(part for part in zoned if part), destination.name, section]
    text = ".".join(["sni", *parts])
    legal = all(names.is_dns_label(part) for part in parts) and len(text) <= _SNI_LENGTH_MAX
    return text if legal else ""
