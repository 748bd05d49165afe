"""The control plane's end of the admin channel: a WebSocket on the port for proxies.

Nothing is upgraded before the sender's token was found to be for the proxy that it names, and the proxy's
object to be stored. What then comes over the channel belongs to that proxy.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from koguma.access.user import User
from koguma.api.call import Call
from koguma.application.context import Context
from koguma.envoy import admin_channel
from koguma.envoy.admin_channel import BadChannelMessage
from koguma.fleet.admin_channels import AdminChannel, AdminChannels, ChannelSocket
from koguma.fleet.gate import ProxyAdmission, ProxyGate
from koguma.identity import dataplane_auth, proxy_types
from koguma.identity.proxy_types import ProxyType
from koguma.model import labels
from koguma.model.errors import BadRequest, Conflict, NotAllowed, NotFound, Unauthenticated
from koguma.model.resource import Key

_CLOSE_SECONDS: Final = 2.0
_REASON_BYTES_MAX: Final = 120  # of a close frame (RFC 6455: 123)

_log = structlog.get_logger("koguma.proxies")


class AdminChannelServer:
    """Handler of `GET /admin-channel`."""

    def __init__(
        self, context: Context, gate: ProxyGate, channels: AdminChannels, n_proxies: Callable[[], int]
    ) -> None:
        """`n_proxies` counts those of the whole fleet."""
        self._context = context
        self._gate = gate
        self._channels = channels
        self._n_proxies = n_proxies

    async def serve(self, call: Call) -> web.StreamResponse:
        """Hold a channel, until either side ends it."""
        if call.request.method != "GET":
            raise NotAllowed(f"{admin_channel.PATH} takes GET alone", allowed=("GET",))
        key, admission = self._admitted(call)
        self._channels.check_pace(key)
        socket = web.WebSocketResponse(
            timeout=_CLOSE_SECONDS,
            heartbeat=admin_channel.PING_SECONDS,
            max_msg_size=admin_channel.MESSAGE_BYTES_MAX,
            compress=False,  # nothing small that unpacks into something large
        )
        if not socket.can_prepare(call.request).ok:
            raise BadRequest(f"{admin_channel.PATH} is for WebSockets; agents of proxies open it")
        await socket.prepare(call.request)
        greeting = admin_channel.greeting(self._n_proxies())
        await socket.send_str(msgspec.json.encode(greeting).decode())

        async def close(reason: str) -> None:
            text = reason.encode()[:_REASON_BYTES_MAX]
            await socket.close(code=WSCloseCode.GOING_AWAY, message=text)

        channel = AdminChannel(key, admission, ChannelSocket(socket.send_str, close))
        self._channels.add(channel)
        try:
            await self._receive(socket, channel)
        finally:
            self._channels.remove(channel)
        return socket

    async def _receive(self, socket: web.WebSocketResponse, channel: AdminChannel) -> None:
        try:
            async for message in socket:
                channel.receive(message.data if message.type is WSMsgType.BINARY else b"")
        except BadChannelMessage as error:
            _log.warning("admin channel closed", proxy=str(channel.key), reason=str(error))
            await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=str(error).encode())

    def _admitted(self, call: Call) -> tuple[Key, ProxyAdmission]:
        """The proxy that a request is for, and the right by which it is; raises where it has none."""
        query: Mapping[str, str] = call.query
        token = dataplane_auth.without_bearer(call.header("Authorization") or "")
        if not token:
            raise Unauthenticated('send the proxy\'s token as "Authorization: Bearer <token>"')
        proxy_type = proxy_types.named(query.get("proxyType", ""))
        if proxy_type is None:
            raise BadRequest("proxies of that type are not served")
        mesh = "" if proxy_type.is_of_zone else query.get("mesh", "")
        return self._of_proxy(call, proxy_type, mesh, query.get("name", ""), token)

    def _of_proxy(
        self, call: Call, proxy_type: ProxyType, mesh: str, name: str, token: str
    ) -> tuple[Key, ProxyAdmission]:
        presented = self._gate.presented_by(proxy_type, mesh, token)
        self._gate.check_name(presented.claims, proxy_type, mesh, name)
        call.user = User(f"proxy:{mesh}.{name}")
        proxy = self._context.state.named(proxy_type.kind, mesh, name)
        if proxy is None:
            raise NotFound("the proxy is not known yet")
        self._gate.check_stored(presented.claims, proxy)
        instance = call.query.get("instance", "")
        if proxy.labels.get(labels.INSTANCE, instance) != instance:
            raise Conflict("a later run of this proxy has taken its place")
        return proxy.key, self._gate.admission(presented, proxy)
