"""Claims: the content of a token, decoded without verifying its signature."""

import base64
import binascii
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from koguma.cli.failures import CommandFailure

Json = Any

_PARTS: Final = 3
_LENGTH_MAX: Final = 64 * 1024


def read(word: str) -> str:
    """A token from the command line, or from standard input where it is `-`."""
    return sys.stdin.read(_LENGTH_MAX).strip() if word == "-" else word.strip()


def from_file(word: str) -> str:
    """A token from a file, from standard input for `-`, or the word itself where it has a token's form."""
    if word == "-" or (is_token(word) and not os.path.isfile(word)):  # noqa: PTH113 - Path raises for long names
        return read(word)
    try:
        with Path(word).expanduser().open(encoding="ascii") as stream:
            return stream.read(_LENGTH_MAX).strip()
    except OSError as error:
        shown = f"{word[:80]}: {error.strerror}"
        raise CommandFailure(f"{shown}; give a file with a token, - for standard input, or a token") from None
    except UnicodeDecodeError:
        raise CommandFailure(f"{word}: this is no token: it is no text") from None


def is_token(text: str) -> bool:
    """Whether a text has the form of a signed token."""
    return text.count(".") == _PARTS - 1


def decoded(token: str) -> tuple[Json, Json]:
    """Header and claims of a token. The signature is not verified: only the server has the keys."""
    if not is_token(token):
        raise CommandFailure("this is no token: a signed JWT has three parts with dots between")
    header, claims, _ = token.split(".")
    return _part(header, "header"), _part(claims, "claims")


def purpose(claims: Json) -> str:
    """What a token is for, as its claims show it: user, dataplane, zone or service-account."""
    if "kubernetes.io" in claims:
        return "service-account"
    if "Mesh" in claims:
        return "dataplane"
    return "zone" if "Zone" in claims else "user"


def _part(text: str, word: str) -> Json:
    try:
        value = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise CommandFailure(f"this is no token: its {word} cannot be read") from None
    if not isinstance(value, dict):
        raise CommandFailure(f"this is no token: its {word} is no JSON object")
    return value
