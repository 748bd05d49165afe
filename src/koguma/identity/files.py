"""Private files of a control plane in its data directory: its CA, its certificate, its admin token.

A file is written under a temporary name, with mode 0600 from the beginning, and renamed when it is safely on
disk: a reader sees the old content or the new, never a part. Missing files are created, and the server
certificate is renewed in time. A CA is never overwritten, because clients trust it: where the control planes
of a store share another one, the files of the old one get other names.
"""

import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from koguma.identity import certificates, tokens
from koguma.identity.certificates import KeyPair, UnusableCertificate
from koguma.identity.claims import ADMIN, UserClaims
from koguma.identity.signing_keys import KeyRing
from koguma.identity.token_requests import TEN_YEARS
from koguma.model.errors import Unauthenticated
from koguma.model.redacted import Redacted

ADMIN_TOKEN: Final = "admin-token"  # noqa: S105 - a file's name, not a token
CA: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CERTIFICATE: Final = "tls.pem"
CERTIFICATE_KEY: Final = "tls-key.pem"
OLD: Final = ".old"  # after the names of files of a CA that was replaced

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")

_PRIVATE_MODE: Final = 0o600
_FOREIGN_BITS: Final = stat.S_IRWXG | stat.S_IRWXO


class PrivateFile(msgspec.Struct, frozen=True):
    """The content of a private file; `warning` is empty unless others can read it."""

    text: Redacted
    warning: str = ""


class ServerCredentials(msgspec.Struct, frozen=True):
    """The certificate of the servers of a control plane, its CA, and their files."""

    ca_path: Path
    certificate_path: Path
    key_path: Path
    ca: str
    certificate: str
    key: Redacted
    warnings: tuple[str, ...] = ()


def write_private(path: Path, text: Redacted | str, *, replace: bool = True) -> bool:
    """Write a file that only its owner can read; False if it exists and `replace` is False."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    content = text.reveal() if isinstance(text, Redacted) else text
    try:
        _write_new(temporary, content.encode())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, fails if the file exists
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def _write_new(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, _PRIVATE_MODE), "wb") as file:
        os.fchmod(file.fileno(), _PRIVATE_MODE)  # a strict umask may have removed even the owner's bits
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_private(path: Path) -> PrivateFile:
    """Read a private file; FileNotFoundError where there is none."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        text = Redacted(file.read().decode("utf-8", "replace"))
    if mode & _FOREIGN_BITS:
        return PrivateFile(text, f'"{path}" is open to others (mode {mode:04o}); run: chmod 600 "{path}"')
    return PrivateFile(text)


def admin_token(data_dir: Path, ring: KeyRing[UserClaims], now: datetime) -> PrivateFile:
    """The token of the local admin; a new one if there is none or it is no longer a valid admin token."""
    path = data_dir / ADMIN_TOKEN
    stored = _read_if_exists(path)
    if stored is not None:
        text = stored.text.reveal().strip()
        if _is_admin_token(text, ring, now):
            return PrivateFile(Redacted(text), stored.warning)
    token = tokens.issue(ring, ADMIN, TEN_YEARS, now)
    write_private(path, token)
    return PrivateFile(token)


def _is_admin_token(token: str, ring: KeyRing[UserClaims], now: datetime) -> bool:
    try:
        claims = tokens.verify(ring, token, now)
    except Unauthenticated:
        return False
    return (claims.name, claims.groups) == (ADMIN.name, ADMIN.groups)


def server_credentials(data_dir: Path, hostnames: Sequence[str], now: datetime) -> ServerCredentials:
    """The CA and the server certificate in `data_dir`, created or renewed if needed.

    The certificate is valid for this machine's local names and for `hostnames`.
    """
    names = tuple(dict.fromkeys((*LOCAL_NAMES, *hostnames)))
    warnings: list[str] = []
    ca, ca_key = _authority(data_dir, now, warnings)
    server = _stored_server(data_dir, ca, names, now, warnings)
    if server is None:
        server = _new_server(data_dir, ca, ca_key, names, now)
    return ServerCredentials(
        ca_path=data_dir / CA,
        certificate_path=data_dir / CERTIFICATE,
        key_path=data_dir / CERTIFICATE_KEY,
        ca=ca,
        certificate=server.certificate,
        key=server.key,
        warnings=tuple(warnings),
    )


def authority(data_dir: Path, now: datetime) -> KeyPair | None:
    """The CA in `data_dir`, created if there is none; None where its key is not there."""
    ca, key = _authority(data_dir, now, [])
    return None if key is None else KeyPair(ca, key)


def keep_authority(data_dir: Path, shared: KeyPair) -> str:
    """Make `shared` the CA in `data_dir`; returns where the certificate of another one is now, if any.

    During a rotation the file has several, of which the first issues; then who trusts the old file is fine.
    """
    path, key_path = data_dir / CA, data_dir / CA_KEY
    old, old_key = _read_if_exists(path), _read_if_exists(key_path)
    is_same = old is not None and old.text.reveal() == shared.certificate
    if is_same and old_key is not None and old_key.text.reveal() == shared.key.reveal():
        return ""
    aside = path.with_name(f"{path.name}{OLD}")
    if old is not None and not is_same:
        write_private(aside, old.text)
    if old_key is not None and old_key.text.reveal() != shared.key.reveal():
        write_private(key_path.with_name(f"{key_path.name}{OLD}"), old_key.text)
    write_private(key_path, shared.key)
    write_private(path, shared.certificate)
    is_trusted = old is not None and certificates.first(shared.certificate) in old.text.reveal()
    return "" if old is None or is_trusted else str(aside)


def _authority(data_dir: Path, now: datetime, warnings: list[str]) -> tuple[str, Redacted | None]:
    """The CA. Its key may be absent as long as nothing has to be signed."""
    path, key_path = data_dir / CA, data_dir / CA_KEY
    if not path.exists():
        _make_authority(path, key_path, now)
    ca, key = read_private(path).text.reveal(), _read_if_exists(key_path)
    _raise_if_any(certificates.problems(ca, None if key is None else key.text, now), path, key_path)
    warnings.extend([key.warning] if key is not None and key.warning else [])
    if certificates.needs_renewal(ca, now):
        ends = certificates.expires_at(ca)
        warnings.append(f'the CA in "{path}" ends on {ends:%Y-%m-%d}; plan to give clients a new one')
    return ca, None if key is None else key.text


def _make_authority(path: Path, key_path: Path, now: datetime) -> None:
    # The key first: a process that finds a key without a certificate, after a crash or because two start at
    # once, creates the certificate from that key.
    write_private(key_path, certificates.make_key(), replace=False)
    try:
        created = certificates.make_authority(read_private(key_path).text, now)
    except UnusableCertificate as error:
        _raise_if_any([error.detail], path, key_path)
    else:
        write_private(path, created.certificate, replace=False)


def _raise_if_any(problems: Iterable[str], path: Path, key_path: Path) -> None:
    reason = "; ".join(problems)
    if reason:
        raise UnusableCertificate(
            f'the CA in "{path}" and "{key_path}" cannot be used: {reason}. Repair the two files, or move'
            " them away to get a new CA, which clients must then be given"
        )


def _stored_server(
    data_dir: Path, ca: str, names: Sequence[str], now: datetime, warnings: list[str]
) -> KeyPair | None:
    """The stored server certificate; None if a new one is needed."""
    certificate = _read_if_exists(data_dir / CERTIFICATE)
    key = _read_if_exists(data_dir / CERTIFICATE_KEY)
    if certificate is None or key is None:
        return None
    pem = certificate.text.reveal()
    if any(certificates.problems(pem, key.text, now)) or certificates.needs_renewal(pem, now):
        return None
    if not certificates.covers(pem, names) or not certificates.is_issued_by(pem, ca):
        return None
    warnings.extend([key.warning] if key.warning else [])
    return KeyPair(pem, key.text)


def _new_server(
    data_dir: Path, ca: str, ca_key: Redacted | None, names: Sequence[str], now: datetime
) -> KeyPair:
    if ca_key is None:
        raise UnusableCertificate(
            f'the server certificate in "{data_dir / CERTIFICATE}" must be renewed and "{data_dir / CA_KEY}"'
            " is not there; put the CA's key back, or give a certificate of your own"
        )
    server = certificates.make_server(KeyPair(ca, ca_key), names, now)
    write_private(data_dir / CERTIFICATE_KEY, server.key)
    write_private(data_dir / CERTIFICATE, server.certificate)
    return server


def _read_if_exists(path: Path) -> PrivateFile | None:
    try:
        return read_private(path)
    except FileNotFoundError:
        return None
