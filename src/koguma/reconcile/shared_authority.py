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


def stored_in(state: State) -> KeyPair | None:
    """The CA in a store; None where it has none, UnusableCertificate where it cannot be read."""
    entry = state.entry(KEY)
    if entry is None:
        return None
    try:
        if isinstance(entry, Unreadable):
            raise UnusableCertificate(f"the CA in the store cannot be read: {entry.error}")
        first = msgspec.convert(entry.spec, _StoredCas).authorities[0]
    except (msgspec.ValidationError, IndexError) as error:
        raise UnusableCertificate("the CA in the store cannot be read: it has another form") from error
    return KeyPair(first.certificate, Redacted(first.key))


async def share(store: Store, data_dir: Path, now: datetime) -> str:
    """Make the CA of the store that of the data directory, or the other way round; answers a warning, if any.

    Afterwards the files in the data directory are those of the CA in the store.
    """
    shared = stored_in(store.state)
    if shared is None:
        own = files.authority(data_dir, now)
        if own is None:
            ca = data_dir / files.CA
            return (
                f'the CA in "{ca}" has no key here, so that other control planes of the store cannot use it'
            )
        await compare_and_swap.written_if_first(
            store, Transaction((Put(_resource(own), 0),), SYSTEM, _REASON)
        )
        shared = stored_in(store.state)
    if shared is None:
        raise UnusableCertificate("the CA was removed from the store while this control plane started")
    problems = "; ".join(certificates.problems(shared.certificate, shared.key, now))
    if problems:
        raise UnusableCertificate(
            f"the CA in the store cannot be used: {problems}. Give the control planes a certificate of your"
            " own with --tls-cert-file and --tls-key-file"
        )
    replaced = files.keep_authority(data_dir, shared)
    if not replaced:
        return ""
    _log.info("CA replaced by that of the store", fingerprint=certificates.fingerprint(shared.certificate))
    return (
        f'the control planes of this store have another CA than the one that was in "{data_dir / files.CA}",'
        f' which is "{replaced}" now; give the new file to whoever trusts the old one'
    )


def _resource(pair: KeyPair) -> Resource:
    stored = _StoredCas((_StoredPair(pair.certificate, pair.key.reveal()),))
    return Resource(kind=KEY.kind, name=KEY.name, core_name=KEY.name, spec=msgspec.to_builtins(stored))
