"""Plugins: policies and destinations of installed packages, which come through entry points.

Policies come through `koguma.policies`, destinations of MeshExternalServices through `koguma.destinations`
(`destinations` reads those).

A plugin is trusted code that an operator installed; nothing is ever loaded through the API. A mistake in one
must still not take the control plane along. What cannot be loaded, or is no proper record, is left out with a
warning. What raises while it looks at an object refuses that object and names the policy. And the engine
reads an object that its policy can no longer read as one that says nothing.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final

import msgspec
from msgspec import inspect as shape

from koguma.api import openapi
from koguma.model import schema
from koguma.model.errors import Invalid
from koguma.model.kind import Kind, Kinds, Policy, Scope, Sync, ValidationContext
from koguma.model.phase import Phase
from koguma.model.schema import UNKNOWN, Json, Spec
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation
from koguma.plugins import destinations, entry_points
from koguma.plugins.entry_points import Warn

GROUP: Final = entry_points.POLICIES
BUILTIN: Final = "koguma.policies:POLICIES"  # our own come through the same door, first


class LoadedKinds(msgspec.Struct, frozen=True):
    """All kinds of a control plane, and the names of those that packages brought."""

    kinds: Kinds
    foreign: frozenset[str]


def installed() -> Sequence[metadata.EntryPoint]:
    """The entry points of all installed packages."""
    every = metadata.entry_points()
    return tuple(entry for group in (GROUP, entry_points.DESTINATIONS) for entry in every.select(group=group))


def load(kinds: Iterable[Kind], entries: Iterable[metadata.EntryPoint], warn: Warn) -> LoadedKinds:
    """These kinds with what the entry points offer, less what `warn` is called for."""
    every = sorted(entries, key=lambda each: (each.value != BUILTIN, each.name, each.value))
    of_destinations = [entry for entry in every if entry.group == entry_points.DESTINATIONS]
    known = destinations.with_destinations(kinds, of_destinations, warn)
    foreign: set[str] = set()
    for entry in (entry for entry in every if entry.group != entry_points.DESTINATIONS):
        if entry.value == BUILTIN:
            known += entry.load()
            continue
        for kind in entry_points.offered(entry, Kind, warn):
            found = list(problems(kind, known))
            if found:
                warn(f"{entry_points.place(entry)}: {_called(kind)} is left out: {'; '.join(found)}")
            else:
                known.append(_refusing(kind, entry_points.place(entry)))
                foreign.add(kind.name)
    return LoadedKinds(Kinds(known), frozenset(foreign))


def _called(kind: object) -> str:
    return f'policy "{kind.name}"' if isinstance(kind, Kind) else "one entry"


_PATTERNS: Final = {"name": r"[A-Z][A-Za-z0-9]*", "plural": r"[a-z][a-z0-9]*", "short": r"[a-z]+"}
_TYPES: Final = (
    ("policy", Policy, "a Policy: which lists it has, and its phase"),
    ("sync", Sync, "a Sync"),
    ("aliases", tuple, "a tuple of words"),
)
_PHASES: Final = (Phase.EXTENSIONS, Phase.OVERRIDES, Phase.PATCHES)  # each other one is a built-in policy's
_HOOKS: Final = ("clean", "validate", "warn")
# First words of paths that are no kinds.
_RESERVED: Final = frozenset(
    {"api", "apis", "config", "gui", "healthy", "metrics", "policies", "ready", "tokens"}
)


def problems(kind: Any, known: Iterable[Kind]) -> Iterator[str]:
    """What is wrong with a policy's record, beside these kinds; msgspec does not look when one is made."""
    if not isinstance(kind, Kind):
        yield f"{kind!r:.100} is no koguma.model.kind.Kind"
        return
    wrong = [*_wrong_words(kind), *_wrong_types(kind)]
    yield from wrong
    if not wrong:
        yield from _taken(kind, known)
        yield from _wrong_lists(kind)


def _wrong_words(kind: Kind) -> Iterator[str]:
    for field, pattern in _PATTERNS.items():
        value = getattr(kind, field)
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            yield f"{field} must match {pattern}, not {value!r:.100}"
    if not isinstance(kind.doc, str) or not kind.doc.strip():
        yield "doc must be the page of the manual: a text that begins with a sentence"


def _wrong_types(kind: Any) -> Iterator[str]:
    for field, type_, words in _TYPES:
        if not isinstance(getattr(kind, field), type_):
            yield f"{field} must be {words}"
    phase = getattr(kind.policy, "phase", Phase.EXTENSIONS)
    if phase not in _PHASES:
        yield f"policy.phase must be Phase.EXTENSIONS, Phase.OVERRIDES or Phase.PATCHES, not {phase!r:.100}"
    for field in _HOOKS:
        if not callable(getattr(kind, field)):
            yield f"{field} must be a function"
    if kind.scope is not Scope.MESH:
        yield "scope must be Scope.MESH: a policy lives in a mesh"
    if not isinstance(kind.spec, type) or not issubclass(kind.spec, Spec):
        yield "spec must be a class made from koguma.model.schema.Spec"
        return
    try:  # what is shown of every kind, tried on this one alone
        schema.Checker(kind.spec)
        openapi.encoded(Kinds([kind]))
        _singular, _plural = kind.display_names
    except Exception as error:  # noqa: BLE001 - a record can be wrong in many ways
        yield f"it cannot be described: {entry_points.described(error)}"


def _taken(kind: Kind, known: Iterable[Kind]) -> Iterator[str]:
    owners = {word: other.name for other in known for word in _words(other)}
    for word in _words(kind):
        if word in owners:
            yield f'"{word}" is taken by {owners[word]}'
        elif word in _RESERVED:
            yield f'"{word}" is a path of the API'


def _words(kind: Kind) -> tuple[str, ...]:
    """What an object of this kind may be called by; equal words are one."""
    words = (kind.name.lower(), kind.plural, kind.short, *kind.aliases)
    return tuple(dict.fromkeys(word for word in words if word))


def _wrong_lists(kind: Kind) -> Iterator[str]:
    """The engine reads `targetRef` and the lists of every policy, so their shape is given."""
    assert kind.policy is not None
    fields = _fields(shape.type_info(kind.spec))
    for name, declared in (
        ("to", kind.policy.has_to),
        ("from", kind.policy.has_from),
        ("rules", kind.policy.has_rules),
    ):
        if declared != (name in fields):
            has = "has" if name in fields else "lacks"
            yield f'policy says has_{name}={declared}, and spec {has} "{name}"'
        elif declared and not _is_list(fields[name], needs_ref=name != "rules"):
            entry = "objects with targetRef and default" if name != "rules" else "objects with default"
            yield f'"{name}" must be a list of {entry}'
    if "targetRef" in fields and _class(fields["targetRef"]) is not TargetRef:
        yield '"targetRef" must be a koguma.model.target_ref.TargetRef'


def _is_list(info: shape.Type, *, needs_ref: bool) -> bool:
    if not isinstance(info, shape.ListType | shape.VarTupleType):
        return False
    fields = _fields(_bare(info.item_type))
    return "default" in fields and (not needs_ref or _class(fields.get("targetRef")) is TargetRef)


def _fields(info: shape.Type) -> Mapping[str, shape.Type]:
    found = info.fields if isinstance(info, shape.StructType) else ()
    return {field.encode_name: _bare(field.type) for field in found}


def _bare(info: shape.Type) -> shape.Type:
    """A type without its words, and without the None beside it."""
    match info:
        case shape.Metadata(type=inner):
            return _bare(inner)
        case shape.UnionType(types=types):
            some = [each for each in types if not isinstance(each, shape.NoneType)]
            return _bare(some[0]) if len(some) == 1 else info
        case _:
            return info


def _class(info: shape.Type | None) -> type | None:
    return info.cls if isinstance(info, shape.StructType) else None


def _refusing(kind: Kind, where: str) -> Kind:
    """The same policy, whose own mistakes refuse the object that they are made about."""

    def failure(hook: str, error: Exception) -> Violation:
        mistake = f"{kind.name} cannot judge this object: its {hook} raised {entry_points.described(error)}"
        return Violation("" if kind.inline else "spec", f"{mistake}; tell the makers of {where}", "plugin")

    def clean(spec: Json) -> Json:
        try:
            return kind.clean(spec)
        except Exception as error:
            raise Invalid([failure("clean", error)]) from error

    def validate(spec: Any, context: ValidationContext) -> Iterator[Violation]:
        try:
            for violation in kind.validate(spec, context):
                yield _checked(violation, Violation)
        except Exception as error:  # noqa: BLE001 - that of a plugin
            yield failure("validate", error)

    def warn(spec: Any, context: ValidationContext) -> Iterator[str]:
        try:
            for text in kind.warn(spec, context):
                yield _checked(text, str)
        except Exception as error:
            raise Invalid([failure("warn", error)]) from error

    v1 = msgspec.structs.replace(
        kind.v1,
        to_v1=_guarded(kind.v1.to_v1, lambda error: failure("v1.to_v1", error)),
        from_v1=_guarded(kind.v1.from_v1, lambda error: failure("v1.from_v1", error)),
    )
    return msgspec.structs.replace(kind, clean=clean, validate=validate, warn=warn, v1=v1)


def _guarded(
    convert: Callable[[Json], Json], failure: Callable[[Exception], Violation]
) -> Callable[[Json], Json]:
    def converted(spec: Json) -> Json:
        try:
            return convert(spec)
        except Exception as error:
            raise Invalid([failure(error)]) from error

    return converted


def _checked(value: Any, type_: type) -> Any:
    if not isinstance(value, type_):
        raise TypeError(f"{value!r:.100} is no {type_.__name__}")
    return value


def for_engine(found: LoadedKinds, failed: Callable[[str, str], None]) -> Kinds:
    """The kinds as the engine needs them: nothing raises; `failed` hears of which kind, and why."""
    return Kinds(_forgiving(kind, failed) if kind.name in found.foreign else kind for kind in found.kinds)


def _forgiving(kind: Kind, failed: Callable[[str, str], None]) -> Kind:
    """The same policy, which takes what it cannot read for an empty spec and a lost warning for none."""

    def clean(written: Json) -> Json:
        try:
            spec = kind.clean(written)
            wrong = next((v for v in kind.checker(spec, "spec") if v.rule != UNKNOWN), None)
        except Exception as error:  # noqa: BLE001 - stored under an earlier version of the plugin, perhaps
            failed(kind.name, entry_points.described(error))
            return {}
        if wrong is not None:
            failed(kind.name, f"a stored object no longer fits: {wrong.field}: {wrong.message}")
            return {}
        return spec

    def warn(spec: Any, context: ValidationContext) -> Iterator[str]:
        try:
            yield from kind.warn(spec, context)
        except Exception as error:  # noqa: BLE001 - that of a plugin
            failed(kind.name, entry_points.described(error))

    return msgspec.structs.replace(kind, clean=clean, warn=warn)
