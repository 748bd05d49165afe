"""Server TLS: how a listener ends TLS of clients that are no proxies, and how it refuses a handshake.

A server name without a certificate of its own must not be answered with that of a less exact name: a client
that does not verify would talk to another site. Envoy takes the next filter chain where there is none for a
name, so such a name gets a chain that answers with the alert of RFC 6066, `unrecognized_name`, and closes.
"""

import base64
from collections.abc import Sequence
from typing import Final

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data

HTTP_ALPN: Final = ("h2", "http/1.1")

_FATAL, _UNRECOGNIZED_NAME = 2, 112
_ALERT: Final = bytes((21, 3, 3, 0, 2, _FATAL, _UNRECOGNIZED_NAME))  # a TLS record with two bytes

# The only filter of a chain without a transport socket: what the client sent of its handshake is not read.
REFUSAL: Final[Data] = proto_json.extension(
    "envoy.filters.network.direct_response",
    "envoy.extensions.filters.network.direct_response.v3.Config",
    response={"inline_bytes": base64.b64encode(_ALERT).decode()},
)


def socket(secrets: Sequence[str], alpn: Sequence[str] = ()) -> Data:
    """The transport socket that presents the certificates in these secrets, one for each type of key."""
    context: Data = {
        "tls_certificate_sds_secret_configs": [proto_json.sds(name) for name in secrets],
        # Written out, so that another version of Envoy changes nothing.
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
    }
    if alpn:
        context["alpn_protocols"] = list(alpn)
    return proto_json.extension(
        "envoy.transport_sockets.tls",
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context=context,
        require_client_certificate=False,
    )


def secret(name: str, chain: str, key: str) -> Data:
    """A secret with a certificate and its key, both as PEM; it is for the encoder only."""
    pair = {"certificate_chain": {"inline_string": chain}, "private_key": {"inline_string": key}}
    return {"name": name, "tls_certificate": pair}
