"""Presented certificates: a Secret that a gateway presents is not replaced by one that it could not present.

A new certificate that cannot be used would take a host name away for which there is a good one. So the write
is refused with the reason, and gateways keep what is stored, also over restarts and on other control planes.
Whoever means it deletes the Secret or takes the reference away. One that was not good may become anything.
"""

import base64
from collections.abc import Iterator

from koguma.application.context import Context
from koguma.model import tls_certificate
from koguma.model.errors import Invalid
from koguma.model.resource import Resource
from koguma.model.violation import Violation


def check(context: Context, written: Resource, before: Resource | None) -> None:
    """Raise Invalid where a gateway would lose its certificate."""
    if written.kind != "Secret" or before is None or written.spec.get("data") == before.spec.get("data"):
        return
    reason = tls_certificate.read(_text(written))
    if not isinstance(reason, str) or isinstance(tls_certificate.read(_text(before)), str):
        return
    users = next(_users(context, before), None)
    if users is not None:
        text = (
            f"{users} presents the certificate that is stored, and could not present this one: {reason};"
            " it keeps the stored one. Correct the data, or take the reference away first"
        )
        raise Invalid([Violation("data", text, "certificate")])


def _users(context: Context, secret: Resource) -> Iterator[str]:
    """The listeners that present a Secret, described for people."""
    for gateway in context.state.listed("MeshGateway", secret.mesh):
        for listener in (gateway.spec.get("conf") or {}).get("listeners") or ():
            sources = (listener.get("tls") or {}).get("certificates") or ()
            if any(source.get("secret") == secret.name for source in sources):
                host = listener.get("hostname") or "*"
                yield f"listener {listener.get('port')}:{host} of {gateway.key}"


def _text(secret: Resource) -> str:
    try:
        return base64.b64decode(secret.spec.get("data") or "").decode(errors="replace")
    except ValueError:
        return ""
