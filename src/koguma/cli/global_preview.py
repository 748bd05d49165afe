"""Global preview: asks a Global what a zone would get from it, before the zone takes part.

The command line asks, and not the control plane: that one connects to nothing that a request names.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from koguma import __version__
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.sync import stream_service
from koguma.sync.protocol import messages
from koguma.sync.protocol.messages import BrokenProtocol, Objects, SyncGreeting

SECONDS_MAX: Final = 60.0
_INSTANCE: Final = "koguma zone join"  # who asks, where others would name their control plane


class GlobalPreview(NamedTuple):
    """Who Global is, and what it would send, as JSON."""

    greeting: SyncGreeting
    objects: tuple[bytes, ...]


def asked(address: str, ca: bytes, token: str, zone: str, kinds: Sequence[str]) -> GlobalPreview:
    """What the Global at an address would send a zone that knows these kinds."""
    import grpc  # noqa: PLC0415 - other commands need no gRPC

    parts = urlsplit(address)
    if parts.scheme != "grpcs" or not parts.netloc:
        raise CommandFailure(
            f'--global-address must be like grpcs://HOST:5685, not "{address}"', code=ExitCode.USAGE
        )
    greeting = SyncGreeting(
        name=zone,
        version=__version__,
        instance=_INSTANCE,
        source="",
        revision=0,
        kinds=tuple(kinds),
        sums=b"",
    )
    metadata = (
        (stream_service.ZONE_HEADER, zone),
        (stream_service.INSTANCE_HEADER, _INSTANCE),
        (stream_service.AUTHORIZATION, f"Bearer {token}"),
    )
    credentials = grpc.ssl_channel_credentials(ca or None)
    with grpc.secure_channel(parts.netloc, credentials, options=stream_service.OPTIONS) as channel:
        method: grpc.UnaryStreamMultiCallable[bytes, bytes]
        method = channel.unary_stream(stream_service.PREVIEW_PATH)
        try:
            return _read(method(messages.encoded(greeting), metadata=metadata, timeout=SECONDS_MAX))
        except grpc.RpcError as error:
            raise _failure(address, error.code().name, str(error.details())) from None
        except BrokenProtocol as error:
            raise CommandFailure(f"{address}: {error.detail}") from None


def _read(call: Iterator[bytes]) -> GlobalPreview:
    greeting: SyncGreeting | None = None
    objects: list[bytes] = []
    for data in call:
        message = messages.decoded(data)
        if isinstance(message, SyncGreeting):
            greeting = message
        elif isinstance(message, Objects):
            objects += [each.content for each in message.objects]
    if greeting is None or greeting.name:
        raise BrokenProtocol("it is no Global: it did not say that it is one")
    return GlobalPreview(greeting, tuple(objects))


def _failure(address: str, code: str, detail: str) -> CommandFailure:
    match code:
        case "UNAUTHENTICATED" | "PERMISSION_DENIED":
            return CommandFailure(f"Global does not let this zone in: {detail}", code=ExitCode.DENIED)
        case "UNIMPLEMENTED":
            return CommandFailure(f"the Global at {address} is of an older version; upgrade it first")
        case "ALREADY_EXISTS":
            return CommandFailure(f"another control plane has the name of this zone at Global: {detail}")
        case "UNAVAILABLE" | "DEADLINE_EXCEEDED":
            words = f"Global does not answer at {address}: {detail}"
            hints = (f" - {stream_service.TRUST_HINT}",) if stream_service.UNTRUSTED in detail else ()
            return CommandFailure(words, hints, code=ExitCode.UNREACHABLE)
    return CommandFailure(f"Global refuses: {detail}")
