"""Limits of the xDS server: what a proxy may do, and how long things may take."""

import msgspec


class XdsLimits(msgspec.Struct, frozen=True):
    """All limits, with their defaults."""

    drain_seconds: float = 30.0  # that a resource stays after nothing references it any more
    streams_max: int = 10_000
    streams_per_connection_max: int = 100
    message_bytes_max: int = 16 * 1024 * 1024  # a reconnecting proxy names the versions of all it holds
    metadata_bytes_max: int = 32 * 1024
    lookahead_bytes: int = 256 * 1024  # that a proxy may send before they are read
    accept_queue_seconds: int = 600  # that a new stream may wait until it is accepted
    first_request_seconds: float = 10.0
    last_write_seconds: float = 1.0  # for a write in progress when its stream has to end
    write_seconds_max: float = 1.0  # that a slow proxy keeps its write slot
    ack_seconds_max: float = 0.25  # that a new proxy keeps its write slot without an ACK
    ends_a_second: int = 5_000  # streams that end when the server stops
    write_slots: int = 128  # streams that write at a time
    write_slots_for_new: int = 16


def grpc_options(limits: XdsLimits) -> list[tuple[str, int]]:
    """The gRPC server options."""
    return [
        ("grpc.so_reuseport", 0),  # two servers on one port would each get some of the proxies
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        # An Envoy has two or three streams on its connection. A client that opens and resets more has to wait
        # until those have ended.
        ("grpc.max_concurrent_streams", limits.streams_per_connection_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes_max),
        # When all proxies reconnect at once, after a restart, they queue; by default gRPC would reject some.
        ("grpc.server.max_pending_requests", limits.streams_max),
        ("grpc.server.max_pending_requests_hard_limit", limits.streams_max),
        ("grpc.server_max_unrequested_time_in_server", limits.accept_queue_seconds),
        # Pings find an idle proxy whose machine was switched off.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The first request of a reconnecting proxy, with the versions of all it holds, fits into the window.
        # So there is no need to measure the bandwidth of each connection.
        ("grpc.http2.lookahead_bytes", limits.lookahead_bytes),
        ("grpc.http2.bdp_probe", 0),
        # The owner of an Envoy decides how often it pings; it is never disconnected for that.
        ("grpc.http2.max_ping_strikes", 0),
    ]
