"""Servers outside the mesh, of every protocol, on all addresses of a machine.

Run as `python tests/traffic/outside_servers.py DIRECTORY`, where servers.json lists them. Each answers with
its name and what it saw, as one line of JSON. With a certificate it speaks TLS.
"""

import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc

METHOD = "/outside.Outside/Ask"
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def context(server: dict[str, Any], directory: Path) -> ssl.SSLContext | None:
    """The TLS of a server, which notes on each connection the server name that was asked for."""
    if "certificate" not in server:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(directory / server["certificate"])
    if version := _VERSIONS.get(server.get("version", "")):
        made.minimum_version = made.maximum_version = version
    if server.get("asks"):
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(directory / "ca.pem")

    def remember(connection: Any, name: str | None, _context: Any) -> None:
        connection.asked = name

    made.sni_callback = remember
    return made


def listening(server: dict[str, Any]) -> socket.socket:
    if "path" in server:
        made = socket.socket(socket.AF_UNIX)
        made.bind(server["path"])
        Path(server["path"]).chmod(0o666)
    else:
        made = socket.socket(socket.AF_INET6)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("::", server["port"]))
    made.listen(64)
    return made


def serve_lines(server: dict[str, Any], tls: ssl.SSLContext | None) -> None:
    """A server that reads a line and answers with one."""
    accepting = listening(server)

    def answer(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain:
            plain.settimeout(60)
            connection = tls.wrap_socket(plain, server_side=True) if tls else plain
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline():
                    at = connection.getsockname()[0].removeprefix("::ffff:")
                    seen = {"server": server["name"], "at": at, "sni": getattr(connection, "asked", None)}
                    connection.sendall(json.dumps({**seen, "line": line.decode().strip()}).encode() + b"\n")

    while True:
        plain, _ = accepting.accept()
        threading.Thread(target=answer, args=(plain,), daemon=True).start()


def serve_http(server: dict[str, Any], tls: ssl.SSLContext | None) -> None:
    """A server of HTTP/1.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = "path" not in server

        def do_GET(self) -> None:
            sni = getattr(self.connection, "asked", None)
            seen = {"server": server["name"], "sni": sni, "path": self.path, "headers": dict(self.headers)}
            body = json.dumps(seen).encode()
            if self.path.startswith("/sleep/"):
                time.sleep(float(self.path.rpartition("/")[2]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> Any:
            connection, address = self.socket.accept()
            if tls is None:
                return connection, address or ("unix", 0)
            connection.settimeout(60)
            return tls.wrap_socket(connection, server_side=True), address or ("unix", 0)

        def handle_error(self, *_: Any) -> None:
            pass  # a caller that hung up

    made = Server(("", 0), Handler, bind_and_activate=False)
    made.socket.close()
    made.socket = listening(server)
    made.serve_forever(0.1)


def start_grpc(servers: list[dict[str, Any]], directory: Path) -> None:
    """Servers of gRPC, which is HTTP/2."""
    for server in servers:
        name = server["name"]

        def ask(request: bytes, _context: Any, name: str = name) -> bytes:
            return json.dumps({"server": name, "line": request.decode()}).encode()

        handler = grpc.unary_unary_rpc_method_handler(ask)
        service, _, method = METHOD.strip("/").partition("/")
        made = grpc.server(futures.ThreadPoolExecutor(2))
        made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        address = f"[::]:{server['port']}"
        if "certificate" in server:
            pem = (directory / server["certificate"]).read_bytes()
            made.add_secure_port(address, grpc.ssl_server_credentials([(pem, pem)]))
        else:
            made.add_insecure_port(address)
        made.start()
        _KEPT.append(made)


_KEPT: list[grpc.Server] = []


def main() -> None:
    directory = Path(sys.argv[1])
    servers = json.loads((directory / "servers.json").read_text())
    start_grpc([each for each in servers if each["protocol"] in ("http2", "grpc")], directory)
    for server in servers:
        if server["protocol"] not in ("http2", "grpc"):
            serve = serve_http if server["protocol"] == "http" else serve_lines
            arguments = (server, context(server, directory))
            threading.Thread(target=serve, args=arguments, daemon=True).start()
    sys.stdout.write("serves\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
