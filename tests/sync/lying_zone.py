"""A client that speaks the sync protocol with a good token, and says what it likes."""

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Self

import grpc

from koguma.sync import stream_service
from koguma.sync.protocol import messages
from koguma.sync.protocol.messages import Message, SyncGreeting, UnknownMessage
from koguma.sync.protocol.sums import packed


class LyingZone:
    """One stream to Global; `say` sends, `heard` is what comes."""

    def __init__(self, port: int, ca: bytes, token: str, zone: str) -> None:
        self._channel = grpc.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca), options=stream_service.OPTIONS
        )
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        method = self._channel.stream_stream(stream_service.PATH)
        metadata = ((stream_service.ZONE_HEADER, zone), (stream_service.AUTHORIZATION, token))
        self._call = method(iter(self._queue.get, None), metadata=metadata)
        self.zone = zone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._call.cancel()
        self._channel.close()

    def say(self, message: Message | bytes) -> None:
        """Send a message, or bytes that may be none."""
        self._queue.put(message if isinstance(message, bytes) else messages.encoded(message))

    def greet(
        self,
        name: str | None = None,
        kinds: tuple[str, ...] = (),
        instance: str = "liar",
        features: tuple[str, ...] = (),
    ) -> None:
        """Say who it is: a zone that holds nothing."""
        self.say(
            SyncGreeting(
                name=self.zone if name is None else name,
                version="1",
                instance=instance,
                source="",
                revision=0,
                kinds=kinds,
                sums=packed(()),
                features=features,
            )
        )

    def heard(self) -> Iterator[Message | UnknownMessage]:
        """What Global says, until the stream ends."""
        return map(messages.decoded, self._call)

    def end(self) -> str:
        """Why Global ended the stream."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            return str(error.details())  # type: ignore[attr-defined]
        return ""
