"""Hidden keys: which keys in a file equal the stored ones, for somebody who may not read those.

Such a user sees placeholders, which never equal a key. Only the server can compare: the stored object with
the key of the file in place of the placeholder is applied as a dry run, which says whether that changes it.
"""

from collections.abc import Iterator

from koguma.cli import comparison
from koguma.cli.client import ApiClient, Json
from koguma.model import placeholder

_Path = tuple[str | int, ...]


def with_equal_keys(client: ApiClient, stored: Json, given: Json) -> Json:
    """The stored object with the keys of the file that equal what is stored; the others stay hidden."""
    for path, key in _hidden(stored, given, ()):
        tried = _replaced(stored, path, key)
        body = {"objects": [comparison.without_computed(tried)]}
        (result,) = client.send("POST", "/_apply", [("dryRun", "All")], body).field("results")
        if result["action"] == "unchanged":
            stored = tried
    return stored


def _hidden(stored: Json, given: Json, at: _Path) -> Iterator[tuple[_Path, str]]:
    """Where a placeholder is stored and the file has another text, and that text."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for name in stored.keys() & given.keys():
            yield from _hidden(stored[name], given[name], (*at, name))
    elif isinstance(stored, list) and isinstance(given, list):
        for index, (old, new) in enumerate(zip(stored, given, strict=False)):
            yield from _hidden(old, new, (*at, index))
    elif isinstance(stored, str) and isinstance(given, str) and placeholder.is_placeholder(stored):
        yield at, given


def _replaced(value: Json, path: _Path, text: str) -> Json:
    if not path:
        return text
    name, *rest = path
    if isinstance(value, list):
        return [_replaced(part, tuple(rest), text) if i == name else part for i, part in enumerate(value)]
    return {**value, name: _replaced(value[name], tuple(rest), text)}
