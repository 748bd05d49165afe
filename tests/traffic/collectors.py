"""Places where proxies send what they see: lines over TCP, OTLP over gRPC, posts; and a page to scrape."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from koguma.envoy import schema

SERVICES = {
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
REQUESTS = {
    "logs": "opentelemetry.proto.collector.logs.v1.ExportLogsServiceRequest",
    "traces": "opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest",
    "metrics": "opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest",
}


class LineCollector:
    """A collector of lines over TCP, which can go away and come back on its port."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.port = 0
        self._open: list[socket.socket] = []
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: the end
            while True:
                connection, _ = listening.accept()
                self._open.append(connection)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile() as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()


class OtlpCollector:
    """A collector of OpenTelemetry data over gRPC; what came stands in `logs`, `traces` and `metrics`."""

    def __init__(self) -> None:
        self.logs: list[Any] = []
        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        self._schema = schema.load(envoy())
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        for signal, service in SERVICES.items():
            handler = grpc.unary_unary_rpc_method_handler(self._taking(signal))
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
            )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _taking(self, signal: str) -> Any:
        message = self._schema.message_class(REQUESTS[signal])

        def take(body: bytes, _context: Any) -> bytes:
            found = json_format.MessageToDict(message.FromString(body))
            getattr(self, signal).append(found)
            return b""

        return take

    def stop(self) -> None:
        self._server.stop(None)


def envoy() -> Path:
    return Path(str(metadata.distribution(schema.PACKAGE).locate_file("envoy/_bin/envoy")))


def attributes(entries: Any) -> dict[str, Any]:
    """OTLP attributes as a map."""
    return {each["key"]: next(iter(each["value"].values()), None) for each in entries}


class _Server:
    """A server with a handler of its own, in a thread."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class MetricsPage(_Server):
    """An application that gives its own metrics."""

    def __init__(self, text: str) -> None:
        class Handler(_Handler):
            def do_GET(self) -> None:
                self.reply(text.encode())

        super().__init__(Handler)


class HttpCollector(_Server):
    """A collector over HTTP: the path and body of each request, also of one whose length is not known."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        posts = self

        class Handler(_Handler):
            def do_POST(self) -> None:
                length = self.headers.get("content-length")
                body = b"".join(self.chunks()) if length is None else self.rfile.read(int(length))
                posts.seen.append((self.path, body))
                self.reply(b"{}")

            def chunks(self) -> Iterator[bytes]:
                while size := int(self.rfile.readline(), 16):
                    yield self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()

            do_PUT = do_POST  # noqa: N815

        super().__init__(Handler)
