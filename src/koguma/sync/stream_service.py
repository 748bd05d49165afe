"""The gRPC service of sync: its names, its limits, and the headers of a stream. Messages are bytes to it."""

from typing import Final

SERVICE: Final = "koguma.sync.v1.Sync"
METHOD: Final = "Connect"
PATH: Final = f"/{SERVICE}/{METHOD}"
PREVIEW: Final = "Preview"  # what a zone would get, without taking part
PREVIEW_PATH: Final = f"/{SERVICE}/{PREVIEW}"
PREVIEWS_MAX: Final = 2  # at a time: each reads all that Global has
ZONE_HEADER: Final = "koguma-zone"
INSTANCE_HEADER: Final = "koguma-instance"  # which control plane of the zone
AUTHORIZATION: Final = "authorization"
SCOPE: Final = "cp"  # that a zone token needs
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
STREAMS_MAX: Final = 1000  # at a time, also of those who are not known yet
STREAMS_PER_CONNECTION_MAX: Final = 4
KEEPALIVE_MS: Final = 5_000
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"  # what gRPC says of a certificate of another CA
TRUST_HINT: Final = "--global-ca has to be the CA of this Global: ca.pem in its data directory"

OPTIONS: Final[list[tuple[str, int]]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 32 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # Whoever is gone without a word is noticed within ten seconds.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
