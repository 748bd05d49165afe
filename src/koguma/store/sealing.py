"""Sealing: encryption of Secrets at rest. Bodies are sealed when they are appended, and opened when read.

A sealed body is text: `sealed:1:<id of the key>:<base64 of nonce and AES-256-GCM's output>`. The revision and
the key of the object are associated data, so that no body can be moved to another row. Rows of other kinds,
and older rows, are plain JSON, which begins with a brace.

The first key seals, all keys open. Keys come from a file or from a command (`keys`). Bodies that are not
stored as configured are rewritten at the next start, history included.
"""

import base64
import binascii
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from koguma.store.contract import StoreUnusable
from koguma.store.keys import KeySource, StoreKey
from koguma.store.row import Row

_MARK: Final = "sealed:1:"
_ID_CHARACTERS: Final = 16
PREFIX_CHARACTERS: Final = len(_MARK) + _ID_CHARACTERS + 1  # of a stored body: they say how it is stored
_NONCE_BYTES: Final = 12


class Sealing:
    """Seals and opens the bodies of some kinds; with `is_on` False they are stored plain."""

    def __init__(self, kinds: Collection[str], source: KeySource | None, *, is_on: bool = True) -> None:
        self.kinds = tuple(sorted(kinds))
        self._source = source
        self._is_on = is_on
        self._keys: dict[str, StoreKey] = {}
        self._first: StoreKey | None = None
        self._is_loaded = False

    def load_keys(self, prefixes: Iterable[str], where: str) -> None:
        """Load the keys for the stored prefixes; a new key is made only where nothing is sealed yet."""
        needed = sorted({key_id for prefix in prefixes if (key_id := _key_id(prefix))})
        if self._source is not None:
            self._read(may_make=self._is_on and not needed)
        missing = [key_id for key_id in needed if key_id not in self._keys]
        if missing:
            raise StoreUnusable(_missing(where, missing, self._source))
        if self._is_on and self.kinds and self._first is None:
            raise StoreUnusable(
                f"the Secrets in {where} are to be encrypted, and no key was given: write one with"
                " `openssl rand -base64 32` into a file that only its owner can read, and give it to every"
                " control plane on this store with --store-key-file; or choose --no-store-encryption"
            )
        self._is_loaded = True

    def _read(self, *, may_make: bool) -> None:
        assert self._source is not None
        keys = self._source.keys(may_make=may_make)
        self._keys = {key.id: key for key in keys}
        self._first = keys[0] if keys and self._is_on else None

    @property
    def prefix(self) -> str:
        """The prefix of a body that is stored as configured; empty for a plain one."""
        return f"{_MARK}{self._first.id}:" if self._first else ""

    @property
    def summary(self) -> str:
        """How Secrets are stored, as a sentence; empty before a store was opened."""
        if self._first is not None:
            return f"Secrets are encrypted with the key {self._first.id}"
        return "" if not self._is_loaded else "Secrets are not encrypted, by choice"

    def is_current(self, prefix: str) -> bool:
        """Whether a body with this prefix is stored as configured."""
        return prefix == self.prefix if self._first else not prefix.startswith(_MARK)

    def sealed(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows as they are stored."""
        first = self._first
        if first is None or not any(row.kind in self.kinds for row in rows):
            return rows
        return [row._replace(body=_sealed(first, row)) if row.kind in self.kinds else row for row in rows]

    def opened(self, row: Row) -> Row:
        """The row with its body decrypted; ValueError says why it cannot be."""
        body = _text_if_sealed(row.body)
        if not body:
            return row
        key = self._key(_key_id(body))
        try:
            data = base64.b64decode(body[PREFIX_CHARACTERS:], validate=True)
            plain = AESGCM(key.secret).decrypt(
                data[:_NONCE_BYTES], data[_NONCE_BYTES:], _associated_data(row)
            )
        except (InvalidTag, binascii.Error, ValueError):
            raise ValueError(f"it was sealed with the key {key.id} and has been changed since") from None
        return row._replace(body=plain)

    def resealed(self, values: Iterable[Any]) -> Row:
        """A stored row as configured; one that cannot be opened stays unchanged."""
        row = Row._make(values)
        try:
            return self.sealed([self.opened(row)])[0]
        except ValueError:
            return row

    def _key(self, key_id: str) -> StoreKey:
        if key_id not in self._keys and self._source is not None and self._source.has_changed():
            self._read(may_make=False)  # another control plane may seal with a key that was added
        if key_id not in self._keys:
            raise ValueError(
                f"it is sealed with the key {key_id}, which {self._source or 'no file'} does not have"
            )
        return self._keys[key_id]


PLAIN: Final = Sealing((), None, is_on=False)  # seals nothing


def _text_if_sealed(body: Any) -> str:
    """A sealed body as text, whether its log keeps text or bytes; empty where it is plain or gone."""
    if isinstance(body, str):
        return body if body.startswith(_MARK) else ""
    is_sealed = isinstance(body, bytes) and body.startswith(_MARK.encode())
    return body.decode("ascii", "replace") if is_sealed else ""


def _key_id(text: str) -> str:
    return text[len(_MARK) : PREFIX_CHARACTERS - 1] if text.startswith(_MARK) else ""


def _sealed(key: StoreKey, row: Row) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    data = nonce + AESGCM(key.secret).encrypt(nonce, _bytes(row.body), _associated_data(row))
    return f"{_MARK}{key.id}:".encode() + base64.b64encode(data)


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def _associated_data(row: Row) -> bytes:
    """What is authenticated with a body, but not encrypted."""
    return "\0".join((str(row.revision), *row.key)).encode()


def _missing(where: str, missing: Sequence[str], source: KeySource | None) -> str:
    keys = f"the key {missing[0]}" if len(missing) == 1 else f"the keys {', '.join(missing)}"
    cause = f"{source} does not have it" if source is not None else "no key file was given"
    return (
        f"{where} has Secrets that are encrypted with {keys}, and {cause}: put the key back, from a backup or"
        " from another control plane on this store, and start again; nothing was changed"
    )
