"""Refusal: what an Envoy would not take, and which resources its words are about."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koguma.xds.contract import Rejection

GONE: Final = ""  # the version of what is to be removed


class Refusal(msgspec.Struct, frozen=True):
    """One resource that was refused; `version` is the one that was sent."""

    version: str
    text: str
    revision: int


def mentioned(text: str, names: Iterable[str]) -> frozenset[str]:
    """The names that Envoy's words name, as whole words: `backend` is not mentioned by `backend.v1`."""
    return frozenset(name for name in names if name in text and _stands_in(name, text))


def _stands_in(name: str, text: str) -> bool:
    word = rf"(?<![\w-])(?<!\w\.){re.escape(name)}(?![\w-]|\.\w)"
    return re.search(word, text) is not None


def rejections(type_: str, refusals: Mapping[str, Refusal]) -> list[Rejection]:
    """Refusals as they are reported: those of one response together."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, refusal in sorted(refusals.items()):
        groups.setdefault((refusal.text, refusal.revision), []).append(name)
    return [Rejection(type_, tuple(names), text, revision) for (text, revision), names in groups.items()]
