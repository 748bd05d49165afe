"""Health streams: one connected proxy that checks the health of applications, from its hello to its end.

It reports every few seconds, and with each report it is looked at whether it is to check something else now.
So there is one task for a stream, and it sleeps until a message comes.
"""

import asyncio
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from koguma.model.errors import KogumaError
from koguma.xds.contract import ConnectRequest, HdsConnection
from koguma.xds.health import HealthMessage, HealthReader, HealthSession
from koguma.xds.hello import End, end_of
from koguma.xds.stream import Wire

SILENCE_SECONDS: Final = 60.0  # after which a proxy that reports nothing counts as gone

_log = structlog.get_logger("koguma.xds")


class HealthStream:
    """One proxy that reports. `end` may be called by anybody at any time; the first call counts."""

    def __init__(
        self,
        wire: Wire,
        reader: HealthReader,
        session: HealthSession,
        proxy: HdsConnection,
        hello: ConnectRequest,
    ) -> None:
        self.id = hello.mesh, hello.name
        self._wire = wire
        self._reader = reader
        self._session = session
        self._proxy = proxy
        self._waiting: asyncio.Timeout | None = None
        self._end: End | None = None

    def check_access(self) -> None:
        """Raise a KogumaError once the proxy may not stay."""
        self._proxy.check_access()

    def end(self, code: grpc.StatusCode, text: str = "") -> None:
        """Come to an end with the next turn."""
        self._end = self._end or End(code, text)
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> End:
        """Tell what to check and take reports, until it is over; how it ended."""
        try:
            while self._end is None:
                message = await self._next()
                if message is not None and message.report is not None:
                    await self._proxy.report(self._session.known(message.report))
        except grpc.aio.BaseError:  # it has gone
            self._end = End(grpc.StatusCode.CANCELLED)
        except KogumaError as error:
            self._end = end_of(error)
        except DecodeError as error:
            self._end = End(grpc.StatusCode.INVALID_ARGUMENT, f"the report cannot be read: {error}")
        except Exception:  # noqa: BLE001 - a mistake of ours about one proxy does not end other streams
            _log.exception("health stream failed", mesh=self.id[0], proxy=self.id[1])
            self._end = End(grpc.StatusCode.INTERNAL, "internal error; the control plane's log says more")
        return self._end

    async def _tell(self) -> None:
        message = self._session.next_message(self._proxy.checks())
        if message is not None:
            await self._wire.write(message)

    async def _next(self) -> HealthMessage | None:
        """The next message; None where there is none any more, and then the stream has an end."""
        data: Any = None
        try:
            async with asyncio.timeout(SILENCE_SECONDS) as self._waiting:
                await self._tell()
                data = await self._wire.read()
        except TimeoutError:
            self._end = self._end or End(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no report within {SILENCE_SECONDS:g} seconds"
            )
        finally:
            self._waiting = None
        if data is grpc.aio.EOF:
            self._end = self._end or End(grpc.StatusCode.OK)
        return None if self._end is not None else self._reader.read(data)
