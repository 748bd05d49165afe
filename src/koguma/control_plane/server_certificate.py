"""Server certificate: what the TLS ports present, the operator's or one that we made and renew ourselves."""

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koguma.api import server
from koguma.identity import certificates, files
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted
from koguma.reconcile import shared_authority
from koguma.runtime.clock import now
from koguma.runtime.settings import Settings
from koguma.store import Store


class ServerIdentity(msgspec.Struct, frozen=True):
    """What our TLS ports present, and the CA that signed it."""

    certificate: str
    key: Redacted
    ca: str  # empty where the operator gave a certificate: whoever connects knows its CA
    tls: ssl.SSLContext
    warnings: Sequence[str] = ()


async def identity_of(settings: Settings, data_dir: Path, store: Store) -> ServerIdentity:
    """The certificate of the settings, or else one of our own, in the data directory, by the store's CA."""
    if settings.tls_cert_file:
        return _operators(Path(settings.tls_cert_file), Path(settings.tls_key_file))
    warning = await shared_authority.share(store, data_dir, now(), settings.ca_rotation)
    names = (socket.gethostname(), *settings.hostnames)
    own = files.server_credentials(data_dir, names, now())
    context = server.tls_context(str(own.certificate_path), str(own.key_path))
    return ServerIdentity(
        own.certificate, own.key, own.ca, context, (*filter(None, (warning,)), *own.warnings)
    )


def _operators(certificate_path: Path, key_path: Path) -> ServerIdentity:
    try:
        certificate, key = certificate_path.read_text(), files.read_private(key_path).text
    except OSError as error:
        raise KogumaError(f"cannot read {error.filename}: {error.strerror}") from error
    problems = list(certificates.problems(certificate, key, now()))
    if problems:
        raise KogumaError(f"the certificate {certificate_path} cannot be used: {'; '.join(problems)}")
    return ServerIdentity(certificate, key, "", server.tls_context(str(certificate_path), str(key_path)))
