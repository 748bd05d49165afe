"""Files: what a control plane keeps in its data directory: its CA, its certificate, its admin token.

A file is written beside its place, with mode 0600 from its first byte on, and moved there when it is
safely on disk: a reader sees the old content or the new, never half of one. What is missing is made,
the server certificate is renewed when its time comes, and a CA is never overwritten, because clients
trust it.
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

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")

_PRIVATE_MODE: Final = 0o600
_FOREIGN_BITS: Final = stat.S_IRWXG | stat.S_IRWXO


class PrivateText(msgspec.Struct, frozen=True):
    """The content of a private file; `warning` is empty unless others can get at it."""

    text: Redacted
    warning: str = ""


class ServerCredentials(msgspec.Struct, frozen=True):
    """What the servers of a control plane show to their clients, and where it lies."""

    ca_path: Path
    certificate_path: Path
    key_path: Path
    ca: str
    certificate: str
    key: Redacted
    warnings: tuple[str, ...] = ()


def write_private(path: Path, text: Redacted | str, *, replace: bool = True) -> bool:
    """Write a file that only its owner can read; says whether it did, which it always does with `replace`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    content = text.reveal() if isinstance(text, Redacted) else text
    try:
        _write_new(beside, content.encode())
        if replace:
            beside.replace(path)
        else:
            os.link(beside, path)  # unlike a move, fails where somebody was faster
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def _write_new(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, _PRIVATE_MODE), "wb") as file:
        os.fchmod(file.fileno(), _PRIVATE_MODE)  # a strict umask may have taken the owner's bits as well
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_private(path: Path) -> PrivateText:
    """Read a private file; FileNotFoundError where there is none."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        text = Redacted(file.read().decode("utf-8", "replace"))
    if mode & _FOREIGN_BITS:
        return PrivateText(text, f'"{path}" is open to others (mode {mode:04o}); run: chmod 600 "{path}"')
    return PrivateText(text)


def admin_token(data_dir: Path, ring: KeyRing[UserClaims], now: datetime) -> PrivateText:
    """The token of the local admin; a new one where there is none or where it is no admin's any more."""
    path = data_dir / ADMIN_TOKEN
    found = _read_if_there(path)
    if found is not None:
        text = found.text.reveal().strip()
        if _is_admins(text, ring, now):
            return PrivateText(Redacted(text), found.warning)
    token = tokens.issue(ring, ADMIN, TEN_YEARS, now)
    write_private(path, token)
    return PrivateText(token)


def _is_admins(token: str, ring: KeyRing[UserClaims], now: datetime) -> bool:
    try:
        claims = tokens.verify(ring, token, now)
    except Unauthenticated:
        return False
    return (claims.name, claims.groups) == (ADMIN.name, ADMIN.groups)


def server_credentials(data_dir: Path, hostnames: Sequence[str], now: datetime) -> ServerCredentials:
    """The CA and the server certificate in `data_dir`, made or renewed where needed.

    The certificate is for this machine's local names and for `hostnames`.
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


def _authority(data_dir: Path, now: datetime, warnings: list[str]) -> tuple[str, Redacted | None]:
    """The CA, whose key may be kept elsewhere as long as nothing is to be signed."""
    path, key_path = data_dir / CA, data_dir / CA_KEY
    if not path.exists():
        _make_authority(path, key_path, now)
    ca, key = read_private(path).text.reveal(), _read_if_there(key_path)
    _refuse(certificates.problems(ca, None if key is None else key.text, now), path, key_path)
    warnings.extend([key.warning] if key is not None and key.warning else [])
    if certificates.needs_renewal(ca, now):
        ends = certificates.expires_at(ca)
        warnings.append(f'the CA in "{path}" ends on {ends:%Y-%m-%d}; plan to give clients a new one')
    return ca, None if key is None else key.text


def _make_authority(path: Path, key_path: Path, now: datetime) -> None:
    # The key first: whoever finds a key without a certificate, after a crash or because two start at
    # once, makes the certificate from that key.
    write_private(key_path, certificates.make_key(), replace=False)
    try:
        made = certificates.make_authority(read_private(key_path).text, now)
    except UnusableCertificate as error:
        _refuse([error.detail], path, key_path)
    else:
        write_private(path, made.certificate, replace=False)


def _refuse(problems: Iterable[str], path: Path, key_path: Path) -> None:
    found = "; ".join(problems)
    if found:
        raise UnusableCertificate(
            f'the CA in "{path}" and "{key_path}" cannot be used: {found}. Repair the two files, or move them'
            " away to get a new CA, which clients must then be given"
        )


def _stored_server(
    data_dir: Path, ca: str, names: Sequence[str], now: datetime, warnings: list[str]
) -> KeyPair | None:
    """The stored server certificate, unless it must be made anew."""
    certificate = _read_if_there(data_dir / CERTIFICATE)
    key = _read_if_there(data_dir / CERTIFICATE_KEY)
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
    made = certificates.make_server(KeyPair(ca, ca_key), names, now)
    write_private(data_dir / CERTIFICATE_KEY, made.key)
    write_private(data_dir / CERTIFICATE, made.certificate)
    return made


def _read_if_there(path: Path) -> PrivateText | None:
    try:
        return read_private(path)
    except FileNotFoundError:
        return None
