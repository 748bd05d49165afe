"""A small aggregated API server, as a process of its own: ConfigMap-like notes that it keeps in memory.

It knows its front proxy by a client certificate, and believes nobody else who a request is from. Run it as
`python -m tests.aggregated_server PORT CERTIFICATE KEY CLIENT_CA`.
"""

import asyncio
import json
import ssl
import sys
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

GROUP: Final = "notes.example.com"
VERSION: Final = "v1"
RESOURCE_ID: Final = "an id of the server's own, which nobody may change"
_ROOT: Final = f"/apis/{GROUP}/{VERSION}"
_KIND: Final = "Note"
_VERBS: Final = ["create", "delete", "get", "list", "watch"]
_SCHEMA: Final = {
    "type": "object",
    "description": "A note.",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "text": {"type": "string", "description": "What it says."},
    },
    "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": _KIND}],
}


class Notes:
    """The notes, and who asked for them."""

    def __init__(self) -> None:
        self.notes: dict[tuple[str, str], Any] = {}
        self.revision = 1
        self.changed = asyncio.Condition()

    async def discovery(self, _request: web.Request) -> web.Response:
        resource = {
            "name": "notes",
            "singularName": "note",
            "namespaced": True,
            "kind": _KIND,
            "verbs": _VERBS,
            "shortNames": ["nt"],
            "resourceID": self._resource_id(),
        }
        body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
        return web.json_response({**body, "resources": [resource]})

    def _resource_id(self) -> str:
        """Its own id, or the one that a note says: what a server says is not to be believed."""
        said = [note["resourceID"] for note in self.notes.values() if "resourceID" in note]
        return said[0] if said else RESOURCE_ID

    async def openapi_index(self, _request: web.Request) -> web.Response:
        path = f"apis/{GROUP}/{VERSION}"
        return web.json_response({"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=AB12"}}})

    async def openapi(self, _request: web.Request) -> web.Response:
        schemas = {"com.example.notes.v1.Note": _SCHEMA}
        info = {"title": "Notes", "version": VERSION}
        document = {"openapi": "3.0.0", "info": info, "paths": {}, "components": {"schemas": schemas}}
        return web.json_response(document)

    async def create(self, request: web.Request) -> web.Response:
        note = await request.json()
        key = (request.match_info["namespace"], note["metadata"]["name"])
        self.revision += 1
        author = request.headers["X-Remote-User"]
        meta = {"namespace": key[0], "resourceVersion": str(self.revision), "uid": f"note-{self.revision}"}
        meta["annotations"] = {"author": author}
        self.notes[key] = {**note, "metadata": {**note["metadata"], **meta}}
        async with self.changed:
            self.changed.notify_all()
        return web.json_response(self.notes[key], status=201)

    async def show(self, request: web.Request) -> web.StreamResponse:
        namespace = request.match_info.get("namespace")
        if request.query.get("watch"):
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with suppress(ConnectionError):  # the client has gone
                await self.watch(response)
            return response
        notes = [note for (where, _), note in sorted(self.notes.items()) if namespace in (None, where)]
        meta = {"resourceVersion": str(self.revision)}
        body = {"kind": f"{_KIND}List", "apiVersion": f"{GROUP}/{VERSION}", "metadata": meta, "items": notes}
        return web.json_response(body)

    async def watch(self, response: web.StreamResponse) -> None:
        sent = 0
        while True:
            for note in list(self.notes.values()):
                if int(note["metadata"]["resourceVersion"]) > sent:
                    sent = int(note["metadata"]["resourceVersion"])
                    event = {"type": "ADDED", "object": note}
                    await response.write(json.dumps(event).encode() + b"\n")
            async with self.changed:
                await self.changed.wait()

    async def get(self, request: web.Request) -> web.Response:
        key = (request.match_info["namespace"], request.match_info["name"])
        if key not in self.notes:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            text = f'notes.{GROUP} "{key[1]}" not found'
            return web.json_response({**status, "reason": "NotFound", "message": text}, status=404)
        return web.json_response(self.notes[key])

    async def delete(self, request: web.Request) -> web.Response:
        note = self.notes.pop((request.match_info["namespace"], request.match_info["name"]))
        return web.json_response(note)

    async def seen(self, request: web.Request) -> web.Response:
        """The headers of this request, as the server got them."""
        return web.json_response([[name, value] for name, value in request.headers.items()])


@web.middleware
async def only_the_front_proxy(request: web.Request, handler: Any) -> web.StreamResponse:
    assert request.transport is not None
    peer = request.transport.get_extra_info("peercert") or {}
    names = [value for part in peer.get("subject", ()) for key, value in part if key == "commonName"]
    if names != ["koguma-front-proxy"] or "X-Remote-User" not in request.headers:
        return web.Response(status=401, text="who are you")
    return await handler(request)


def main(port: str, certificate: str, key: str, client_ca: str) -> None:
    notes = Notes()
    app = web.Application(middlewares=[only_the_front_proxy])
    app.router.add_get(_ROOT, notes.discovery)
    app.router.add_get("/openapi/v3", notes.openapi_index)
    app.router.add_get(f"/openapi/v3{_ROOT}", notes.openapi)
    app.router.add_get(f"{_ROOT}/notes", notes.show)
    app.router.add_get(f"{_ROOT}/namespaces/{{namespace}}/notes", notes.show)
    app.router.add_post(f"{_ROOT}/namespaces/{{namespace}}/notes", notes.create)
    app.router.add_get(f"{_ROOT}/namespaces/{{namespace}}/notes/{{name}}", notes.get)
    app.router.add_delete(f"{_ROOT}/namespaces/{{namespace}}/notes/{{name}}", notes.delete)
    app.router.add_get(f"{_ROOT}/namespaces/{{namespace}}/notes/{{name}}/headers", notes.seen)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    web.run_app(app, host="127.0.0.1", port=int(port), ssl_context=tls, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
