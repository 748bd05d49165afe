"""HDS streams: one connected proxy that checks the health of applications.

It reports every few seconds, and with each report we see whether its health checks have changed. So a stream
has one task, which sleeps until a message comes.
"""

import asyncio
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from koguma.model.errors import KogumaError
from koguma.xds.connect_request import GrpcStatus, status_of
from koguma.xds.contract import ConnectRequest, HdsConnection
from koguma.xds.hds import HdsDecoder, HdsMessage, HdsSession
from koguma.xds.stream import GrpcCall

REPORT_SECONDS_MAX: Final = 60.0  # a proxy without a report for this long counts as gone

_log = structlog.get_logger("koguma.xds")


class HdsStream:
    """One reporting proxy. `end` may be called at any time; the first call counts."""

    def __init__(
        self,
        call: GrpcCall,
        decoder: HdsDecoder,
        session: HdsSession,
        connection: HdsConnection,
        request: ConnectRequest,
        last_write_seconds: float,
    ) -> None:
        self.id = request.proxy_id
        self._call = call
        self._decoder = decoder
        self._session = session
        self._connection = connection
        self._last_write_seconds = last_write_seconds
        self._timeout: asyncio.Timeout | None = None  # of what it waits for
        self._is_writing = False
        self.is_cut_off = False  # it ended within a message, so no status can be sent any more
        self._end: GrpcStatus | None = None

    def check_access(self) -> None:
        """Raise a KogumaError once the proxy may not stay connected."""
        self._connection.check_access()

    def end(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the stream at its next step, once a write in progress is done."""
        self._end = self._end or GrpcStatus(code, details)
        if self._timeout is not None:
            last = self._last_write_seconds if self._is_writing else 0
            self._timeout.reschedule(asyncio.get_running_loop().time() + last)

    async def run(self) -> GrpcStatus:
        """Send health checks and take reports until the stream ends; its status."""
        try:
            while self._end is None:
                message = await self._next()
                if message is not None and message.report is not None:
                    await self._connection.report(self._session.current(message.report))
        except grpc.aio.BaseError:  # the proxy disconnected
            self._end = GrpcStatus(grpc.StatusCode.CANCELLED)
        except KogumaError as error:
            self._end = status_of(error)
        except DecodeError as error:
            self._end = GrpcStatus(grpc.StatusCode.INVALID_ARGUMENT, f"the report cannot be read: {error}")
        except Exception:  # noqa: BLE001 - a bug that one proxy triggers does not end other streams
            _log.exception("health stream failed", mesh=self.id[1], proxy=self.id[2])
            self._end = GrpcStatus(
                grpc.StatusCode.INTERNAL, "internal error; the control plane's log says more"
            )
        return self._end

    async def _send_changed_checks(self) -> None:
        message = self._session.next_message(self._connection.checks())
        if message is None:
            return
        self._is_writing = True
        await self._call.write(message)
        self._is_writing = False

    async def _next(self) -> HdsMessage | None:
        """The next message; None where the stream has ended."""
        data: Any = None
        try:
            async with asyncio.timeout(REPORT_SECONDS_MAX) as self._timeout:
                await self._send_changed_checks()
                if self._end is None:
                    data = await self._call.read()
        except TimeoutError:
            self.is_cut_off = self._is_writing
            self._end = self._end or GrpcStatus(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no report within {REPORT_SECONDS_MAX:g} seconds"
            )
        finally:
            self._timeout = None
        if data is grpc.aio.EOF:
            self._end = self._end or GrpcStatus(grpc.StatusCode.OK)
        return None if self._end is not None else self._decoder.decode(data)
