"""Spelling: small pure functions that read several spellings of a spec as one.

A policy's `clean` is built from these. Each takes any JSON and gives JSON: where nothing applies the very
same value comes back, what was written is never changed, and reading twice is reading once. A value of
the wrong type passes through untouched, for the schema to name it.
"""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Final

from koguma.model.kind import Deprecation, V1Conversion
from koguma.model.schema import Json

Reading = Callable[[Json], Json]


def chain(*readings: Reading) -> Reading:
    """One reading after the other."""

    def read(value: Json) -> Json:
        for reading in readings:
            value = reading(value)
        return value

    return read


def field(name: str, reading: Reading) -> Reading:
    """The reading of one field of an object, where it is there."""

    def read(value: Json) -> Json:
        if not isinstance(value, Mapping) or name not in value:
            return value
        old = value[name]
        new = reading(old)
        return value if new is old else {**value, name: new}

    return read


def each(reading: Reading) -> Reading:
    """The reading of every element of a list."""

    def read(value: Json) -> Json:
        if not isinstance(value, (list, tuple)):
            return value
        new = [reading(entry) for entry in value]
        same = all(after is before for after, before in zip(new, value, strict=True))
        return value if same else new

    return read


def renamed(old: str, new: str) -> Reading:
    """An older name of a field; where both are written, neither is touched."""

    def read(value: Json) -> Json:
        if not isinstance(value, Mapping) or old not in value or new in value:
            return value
        return {new if name == old else name: entry for name, entry in value.items()}

    return read


def word(old: str, new: str) -> Reading:
    """An older word for a value."""

    def read(value: Json) -> Json:
        return new if isinstance(value, str) and value == old else value

    return read


def typed(words: Mapping[str, str]) -> Reading:
    """A missing `type`, inferred from the only field present of those that belong to one type each."""

    def read(value: Json) -> Json:
        if not isinstance(value, Mapping) or "type" in value:
            return value
        present = [name for name in words if name in value]
        return {"type": words[present[0]], **value} if len(present) == 1 else value

    return read


def one_as_list(value: Json) -> Json:
    """An object where a list of objects is meant."""
    return [value] if isinstance(value, Mapping) else value


def header_name(value: Json) -> Json:
    """A header's name in lower case, since case has no meaning in it."""
    if not isinstance(value, str) or not value.isascii() or value == value.lower():
        return value
    return value.lower()


# The founding documents write both `tag` and `tags` in a reference.
ref: Final = renamed("tag", "tags")

# The references that a policy may have, wherever they stand.
refs: Final = chain(
    field("targetRef", ref),
    field("to", each(field("targetRef", ref))),
    field("from", each(field("targetRef", ref))),
)


def from_as_rules(spec: Json) -> Json:
    """`from` that names everybody as `rules`, which the engine reads alike; anything else is left as it is.

    Entries of both lists keep their turn: the engine takes them by their number, `from` before `rules`.
    """
    if not isinstance(spec, Mapping) or "from" not in spec:
        return spec
    entries, rules = spec["from"], spec.get("rules") or []
    if not isinstance(entries, list) or not isinstance(rules, list) or not all(map(_is_everybody, entries)):
        return spec
    from_rules = [
        {name: entry[name] for name in entry if name not in ("targetRef", "matches")} for entry in entries
    ]
    turns = [rule for pair in zip_longest(from_rules, rules) for rule in pair if rule is not None]
    rest = {name: value for name, value in spec.items() if name != "from"}
    return {**rest, "rules": turns} if turns else rest


def _is_everybody(entry: Json) -> bool:
    ref = entry.get("targetRef") if isinstance(entry, Mapping) else None
    return isinstance(ref, Mapping) and ref.get("kind") == "Mesh" and not ref.get("tags")


def rules_as_from(spec: Json) -> Json:
    """`rules` for everybody beside `to`, which Kuma takes as `from` only."""
    if not isinstance(spec, Mapping) or "from" in spec or not spec.get("to") or not spec.get("rules"):
        return spec
    rules = spec["rules"]
    if not isinstance(rules, list) or not all(isinstance(r, Mapping) and "matches" not in r for r in rules):
        return spec
    rest = {name: value for name, value in spec.items() if name != "rules"}
    return {**rest, "from": [{**rule, "targetRef": {"kind": "Mesh"}} for rule in rules]}


_FROM: Final = Deprecation(
    "spec.from", "write its entries in spec.rules, without targetRef", becomes="spec.rules"
)

# The clean shape of policies in which `from` may name everybody only.
RULES: Final = V1Conversion(to_v1=from_as_rules, lacks=(_FROM,))
# The same where Kuma refuses `rules` beside `to`.
RULES_BESIDE_TO: Final = V1Conversion(to_v1=from_as_rules, from_v1=rules_as_from, lacks=(_FROM,))
