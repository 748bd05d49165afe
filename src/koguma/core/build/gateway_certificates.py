"""Gateway certificates: the secrets that the filter chains of a gateway's listeners name.

Certificates and keys are no part of the build. A chain names them, and whoever serves the proxy adds them as
secrets of their own (SDS), so that they rotate without closing a connection.
"""

from typing import NamedTuple

from koguma.core import match, world
from koguma.core.incremental import Db, question
from koguma.model.kri import SECRET_SCOPES, SecretName
from koguma.model.resource import Key
from koguma.model.schema import Json


class ListenerCertificates(NamedTuple):
    """The secrets of one listener, in the order of its certificates; or why its chain is left out."""

    secrets: tuple[str, ...] = ()
    problem: str = ""


@question
def of(db: Db, gateway: Key, section: str) -> ListenerCertificates:
    """The secrets that a listener presents."""
    sources = _sources(db, gateway, section)
    if not sources:
        return ListenerCertificates(problem="it has no certificate; write one in tls.certificates")
    return ListenerCertificates(tuple(_name(gateway, section, *each) for each in enumerate(sources)))


def _sources(db: Db, gateway: Key, section: str) -> tuple[Json, ...]:
    resource = world.RESOURCES.get(db, gateway)
    written = ((resource.spec.get("conf") or {}).get("listeners") or ()) if resource else ()
    for listener in written:
        if match.listener_section(listener) == section:
            return tuple((listener.get("tls") or {}).get("certificates") or ())
    return ()


def _name(gateway: Key, section: str, index: int, source: Json) -> str:
    """The name of a certificate: a Secret's own, so that listeners share it, or where it is written."""
    if source.get("secret"):
        return str(SecretName("cert", "secret", f"{gateway.mesh}:{source['secret']}"))
    scope = next((word for word in SECRET_SCOPES if source.get(word)), "inline")
    return str(SecretName("cert", scope, f"{gateway.mesh}:{gateway.name}:{section}:{index}"))
