"""Programs that call the outside and know nothing of a mesh.

Run as `python tests/traffic/outside_callers.py` with a list of calls as JSON on standard input. It
prints the list of answers. A call has a protocol, an address, a port, and the host that a program would name.
An answer is what the server said, a status other than 200, or "closed".
"""

import contextlib
import http.client
import json
import socket
import ssl
import sys
from concurrent import futures
from typing import Any

import grpc
from outside_servers import METHOD

SECONDS = 10


def line_over(connection: socket.socket) -> Any:
    with connection, connection.makefile("rb") as lines:
        connection.sendall(b"hello\n")
        line = lines.readline()
    return json.loads(line) if line else "closed"


def over_tcp(call: dict[str, Any]) -> Any:
    return line_over(socket.create_connection((call["address"], call["port"]), SECONDS))


def over_tls(call: dict[str, Any]) -> Any:
    context = ssl._create_unverified_context()
    plain = socket.create_connection((call["address"], call["port"]), SECONDS)
    return line_over(context.wrap_socket(plain, server_hostname=call["host"] or None))


def over_http(call: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection(call["address"], call["port"], timeout=SECONDS)
    with contextlib.closing(connection):
        headers = {"Host": call["host"]} if call["host"] else {}
        connection.request("GET", call.get("path", "/"), headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == 200 else answer.status


def over_grpc(call: dict[str, Any]) -> Any:
    address = socket.getaddrinfo(call["address"], call["port"], type=socket.SOCK_STREAM)[0][4][0]
    target = f"ipv6:[{address}]:{call['port']}" if ":" in address else f"ipv4:{address}:{call['port']}"
    options = [("grpc.default_authority", call["host"])] if call["host"] else []
    with grpc.insecure_channel(target, [*options, ("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(METHOD)
        try:
            return json.loads(ask(b"hello", timeout=SECONDS))
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"


CALLERS = {"tcp": over_tcp, "tls": over_tls, "http": over_http, "http2": over_grpc, "grpc": over_grpc}


def answer(call: dict[str, Any]) -> Any:
    try:
        return CALLERS[call["protocol"]](call)
    except (OSError, http.client.HTTPException) as error:
        is_end = isinstance(error, (ConnectionError, ssl.SSLError, http.client.HTTPException))
        return "closed" if is_end else type(error).__name__


if __name__ == "__main__":
    with futures.ThreadPoolExecutor(8) as pool:
        json.dump(list(pool.map(answer, json.load(sys.stdin))), sys.stdout)
