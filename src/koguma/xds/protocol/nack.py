"""NACKs: which resources Envoy rejected, found from its error message."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koguma.xds.contract import Rejection

REMOVED: Final = ""  # stands for the version of a resource whose removal was rejected


class ResourceNack(msgspec.Struct, frozen=True):
    """One rejected resource; `version` is the one that was sent."""

    version: str
    text: str
    revision: int


def names_in_error(text: str, names: Iterable[str]) -> frozenset[str]:
    """The names that an error message mentions as whole words: `backend.v1` does not mention `backend`."""
    return frozenset(name for name in names if name in text and _is_whole_word(name, text))


def _is_whole_word(name: str, text: str) -> bool:
    word = rf"(?<![\w-])(?<!\w\.){re.escape(name)}(?![\w-]|\.\w)"
    return re.search(word, text) is not None


def rejections(type_: str, nacks: Mapping[str, ResourceNack]) -> list[Rejection]:
    """NACKs as they are reported: the resources of one response together."""
    groups: dict[tuple[str, int], dict[str, str]] = {}
    for name, nack in sorted(nacks.items()):
        groups.setdefault((nack.text, nack.revision), {})[name] = nack.version
    return [
        Rejection(type_, tuple(versions), text, revision, tuple(versions.values()))
        for (text, revision), versions in groups.items()
    ]
