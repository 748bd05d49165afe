"""Gateway certificates: what the listeners of a MeshGateway present, and the secrets that carry it (SDS).

A filter chain names secrets. They come with the proxies whose listeners name them, beside the listeners, so
that a new certificate changes a secret and nothing else. A certificate that is missing or that Envoy would
refuse is left out with a problem. A listener without any good one refuses the handshakes of its host name
(`envoy.server_tls.REFUSAL`), and others on its port work.

    of(db, gateway, section)          the secrets that a listener's chain names, and what is wrong
    resources(db, gateway, section)   these secrets, encoded
    presented(db, gateway, section)   what is in them, for people
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from koguma.core import match, world
from koguma.core.build import encoding, mesh_secret
from koguma.core.gateway_api import listeners
from koguma.core.gateway_api.listeners import CertificateRef
from koguma.core.incremental import Db, question
from koguma.envoy import server_tls
from koguma.envoy.snapshot import SECRET, Failure, XdsResource
from koguma.model import derived, placeholder, reserved_secrets, tls_certificate
from koguma.model.kri import SecretName
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.tls_certificate import TlsCertificate
from koguma.model.violation import item

# Of a Gateway: `<namespace>/<name>` of a core Secret. Users cannot write this field.
_CORE_SECRET: Final = "kubernetesSecret"  # noqa: S105 - the name of a field
_NONE: Final = "it has no certificate; write one in tls.certificates"
_EMPTY: Final = "names no Secret and holds nothing itself"
HIDDEN: Final = "is hidden from who may not read Secrets"  # where objects are read through the API
_MISSING: Final = "there is none of that name in the mesh; write it, or name another one"
_FILE: Final = "files of the control plane are not read for gateways; write it into a Secret"


class CertificateProblem(msgspec.Struct, frozen=True):
    """Why a listener does not present one of its certificates."""

    path: str  # in the MeshGateway
    source: str  # such as `Secret "shop"`
    secret: str  # the name of that Secret; empty for other sources
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


class ListenerCertificates(msgspec.Struct, frozen=True):
    """The secrets of one listener; without any, `problem` says why its handshakes are refused."""

    secrets: tuple[str, ...] = ()
    problems: tuple[CertificateProblem, ...] = ()

    @property
    def problem(self) -> str:
        """Why no client can connect; empty where there is a certificate."""
        return "" if self.secrets else "; ".join(map(str, self.problems)) or _NONE


class PresentedCertificate(msgspec.Struct, frozen=True):
    """What people may know of a certificate."""

    path: str
    source: str
    secret: str  # the name of a Secret; empty for other sources
    key_type: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    name_problem: str  # that its clients will have; empty where its names cover the listener's


class _Source(msgspec.Struct, frozen=True):
    """One of a listener's certificates as written, and what it is called."""

    path: str
    shown: str
    sds_name: str
    fields: Json

    @property
    def secret(self) -> str:
        """The name of the Secret that it is in; empty for other sources."""
        return self.fields.get("secret") or ""


@question
def of(db: Db, gateway: Key, section: str) -> ListenerCertificates:
    """The secrets that a listener presents; the same for a new certificate, so that no listener changes."""
    names: list[str] = []
    problems: list[CertificateProblem] = []
    for source, read in _chosen(db, gateway, section):
        if isinstance(read, str):
            problems.append(CertificateProblem(source.path, source.shown, source.secret, read))
        else:
            names.append(source.sds_name)
    return ListenerCertificates(tuple(names), tuple(problems))


@question
def resources(db: Db, gateway: Key, section: str) -> tuple[XdsResource | Failure, ...]:
    """The secrets of a listener."""
    return tuple(
        encoding.encoded(
            db,
            SECRET,
            source.sds_name,
            server_tls.secret(source.sds_name, read.chain, read.key.reveal()),
            origin=str(gateway),
        )
        for source, read in _chosen(db, gateway, section)
        if not isinstance(read, str)
    )


@question
def presented(db: Db, gateway: Key, section: str) -> tuple[PresentedCertificate, ...]:
    """The certificates that a listener presents."""
    host = section.partition(":")[2]
    return tuple(
        PresentedCertificate(
            source.path,
            source.shown,
            source.secret,
            read.key_type,
            read.names,
            read.not_before,
            read.not_after,
            tls_certificate.name_problem(read, host),
        )
        for source, read in _chosen(db, gateway, section)
        if not isinstance(read, str)
    )


def _chosen(db: Db, gateway: Key, section: str) -> Iterator[tuple[_Source, TlsCertificate | str]]:
    """The certificates of a listener, each read or with a reason; of one type of key, the first one."""
    types: set[str] = set()
    for source in _sources(db, gateway, section):
        read = _read(db, gateway, source.fields)
        if isinstance(read, TlsCertificate) and read.key_type in types:
            yield (
                source,
                f'duplicate TLS certificate "{source.sds_name}": the one before is {read.key_type} too',
            )
            continue
        if isinstance(read, TlsCertificate):
            types.add(read.key_type)
        yield source, read


@question
def _sources(db: Db, gateway: Key, section: str) -> tuple[_Source, ...]:
    resource = world.RESOURCES.get(db, gateway)
    written = ((resource.spec.get("conf") or {}).get("listeners") or ()) if resource else ()
    for number, listener in enumerate(written):
        if match.listener_section(listener) == section:
            path = f"{item('conf.listeners', number)}.tls.certificates"
            fields = (listener.get("tls") or {}).get("certificates") or ()
            return tuple(
                _source(gateway, section, index, item(path, index), each) for index, each in enumerate(fields)
            )
    return ()


def _source(gateway: Key, section: str, index: int, path: str, fields: Json) -> _Source:
    """A certificate of a Secret is named by that, so that listeners share it; others by their place."""
    name = fields.get("secret")
    if name:
        secret = str(SecretName("cert", "secret", f"{gateway.mesh}:{name}"))
        return _Source(path, f'Secret "{name}"', secret, fields)
    name = _core_secret(gateway, fields)
    if name:
        secret = str(SecretName("cert", "secret", f"{gateway.mesh}:{name}"))
        return _Source(path, f"Secret {name}", secret, fields)
    scope = next((word for word in ("file", "inline", "inlineString") if fields.get(word)), "inline")
    secret = str(SecretName("cert", scope, f"{gateway.mesh}:{gateway.name}:{section}:{index}"))
    return _Source(path, f"{scope} certificate", secret, fields)


def _core_secret(gateway: Key, source: Json) -> str:
    """The namespace and name of a Kubernetes Secret; only a gateway that a Gateway became refers to one.

    Whether it may was decided there; of what users write nobody has checked this field.
    """
    return (source.get(_CORE_SECRET) or "") if derived.source_name(gateway) else ""


def _read(db: Db, gateway: Key, source: Json) -> TlsCertificate | str:
    name = source.get("secret")
    if name:
        return of_secret(db, gateway.mesh, gateway.zone, name)
    name = _core_secret(gateway, source)
    if name:
        return listeners.certificate(db, CertificateRef(*name.split("/", 1)))
    if source.get("file"):
        return _FILE
    text = source.get("inlineString") or mesh_secret.decoded(source.get("inline") or "")
    if placeholder.is_placeholder(text):
        return HIDDEN
    return tls_certificate.read(text) if text else _EMPTY


@question
def of_secret(db: Db, mesh: str, zone: str, name: str) -> TlsCertificate | str:
    """The certificate in a Secret, or the reason why there is none; one answer for all who name it."""
    if reserved_secrets.is_reserved(name):  # stored before that was refused, or past the API
        return reserved_secrets.MESSAGE
    text = mesh_secret.text(db, mesh, zone, name)
    return _MISSING if text is None else tls_certificate.read(text)
