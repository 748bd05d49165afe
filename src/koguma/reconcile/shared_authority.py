"""Shared authority: the CA of the control planes of a store, kept in the store for all of them.

Each control plane has a server certificate of its own by this CA, so that a proxy or a client that trusts the
CA can move from one to another. It is made by whoever starts first on a store that has none, or brought there
out of the data directory of a control plane that has made one before: then clients that trust that stay. The
object is of an internal kind: it is sealed, and no endpoint of the API serves it.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.identity import certificates, files
from koguma.identity.certificates import KeyPair, UnusableCertificate
from koguma.model.internal_kinds import CONTROL_PLANE_CA
from koguma.model.redacted import Redacted
from koguma.model.resource import Key, Resource
from koguma.runtime.settings import CaRotation
from koguma.store.contract import Put, Transaction, Unreadable
from koguma.store.state import State
from koguma.store.store import Store

KEY: Final = Key(CONTROL_PLANE_CA, "", "", "", "ca")
_REASON: Final = "the CA of the control planes"

_log = structlog.get_logger("koguma.certificates")


class _StoredPair(msgspec.Struct, frozen=True):
    certificate: str
    key: str


class _StoredCas(msgspec.Struct, frozen=True):
    """What is stored; the first CA issues, and all are trusted."""

    authorities: tuple[_StoredPair, ...]
    is_newest_used: bool = False  # during a rotation: the one that was added is the first


def stored_in(state: State) -> KeyPair | None:
    """The CA in a store, with the certificates of others that are trusted beside it; None without one.

    UnusableCertificate where it cannot be read.
    """
    stored = _read(state)
    if stored is None:
        return None
    trusted = "".join(each.certificate for each in stored.authorities)
    return KeyPair(trusted, Redacted(stored.authorities[0].key))


def _read(state: State) -> _StoredCas | None:
    entry = state.entry(KEY)
    if entry is None:
        return None
    if isinstance(entry, Unreadable):
        raise UnusableCertificate(f"the CA in the store cannot be read: {entry.error}")
    try:
        stored = msgspec.convert(entry.spec, _StoredCas)
    except msgspec.ValidationError:
        stored = _StoredCas(())
    if not stored.authorities:
        raise UnusableCertificate("the CA in the store cannot be read: it has another form")
    return stored


async def share(store: Store, data_dir: Path, now: datetime, rotation: CaRotation = "none") -> str:
    """Make the CA of the store that of the data directory, or the other way round; answers a warning, if any.

    A step of a rotation is taken first. Afterwards the files in the data directory are those of the store.
    """
    if _read(store.state) is None:
        own = files.authority(data_dir, now)
        if own is None:
            ca = data_dir / files.CA
            return (
                f'the CA in "{ca}" has no key here, so that other control planes of the store cannot use it'
            )
        await _write(store, _StoredCas((_StoredPair(own.certificate, own.key.reveal()),)))
    await _rotate(store, rotation, now)
    shared = stored_in(store.state)
    if shared is None:
        raise UnusableCertificate("the CA was removed from the store while this control plane started")
    problems = "; ".join(certificates.problems(shared.certificate, shared.key, now))
    if problems:
        raise UnusableCertificate(
            f"the CA in the store cannot be used: {problems}. Start once with --ca-rotation use, after which"
            " clients must be given the new ca.pem; or give the control planes a certificate of your own with"
            " --tls-cert-file and --tls-key-file"
        )
    replaced = files.keep_authority(data_dir, shared)
    if not replaced:
        return ""
    _log.info("CA replaced by that of the store", fingerprint=certificates.fingerprint(shared.certificate))
    return (
        f'the control planes of this store have another CA than the one that was in "{data_dir / files.CA}",'
        f' which is "{replaced}" now; give the new file to whoever trusts the old one'
    )


async def _rotate(store: Store, rotation: CaRotation, now: datetime) -> None:
    """Take a step of a rotation, where it was not taken yet.

    `begin` adds a CA that only is trusted, `use` lets it issue, `end` trusts none but the one that issues.
    """
    stored = _read(store.state)
    if stored is None or rotation == "none":
        return
    cas, is_used = stored.authorities, stored.is_newest_used
    is_alone = len(cas) == 1
    has_ended = any(certificates.problems(cas[0].certificate, None, now))
    if is_alone and (rotation == "begin" or (rotation == "use" and has_ended)):
        made = certificates.make_authority(certificates.make_key(), now)
        cas, is_alone = (*cas, _StoredPair(made.certificate, made.key.reveal())), False
    if rotation == "use" and not is_alone and not is_used:
        cas, is_used = (cas[-1], *cas[:-1]), True
    if rotation == "end":
        cas, is_used = cas[:1], False
    if cas != stored.authorities:
        await _write(store, _StoredCas(cas, is_used))
        _log.info("CA of the control planes is being rotated", step=rotation, trusted=len(cas))


async def _write(store: Store, stored: _StoredCas) -> None:
    """Write over what was read; the first control plane wins, and the others see what it wrote."""
    before = store.state.entry(KEY)
    resource = Resource(kind=KEY.kind, name=KEY.name, core_name=KEY.name, spec=msgspec.to_builtins(stored))
    put = Put(resource, before.revision if before else 0)
    await compare_and_swap.written_if_first(store, Transaction((put,), SYSTEM, _REASON))
