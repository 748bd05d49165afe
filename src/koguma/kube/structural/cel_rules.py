"""CEL rules (`x-kubernetes-validations`) of a schema: compiled when it is written, evaluated on every object.

Fields whose names are no identifiers are escaped as Kubernetes does it: `self.a__dash__b`. Where a rule asks
for `oldSelf`, it is a transition rule, and holds for changes only.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from koguma.kube import field_errors, times
from koguma.kube.cel import BOOL, STRING, CelError, CelProgram, compiled
from koguma.kube.structural.words import LIST_KEYS, LIST_TYPE, MISSING, RULES, list_key, properties, values
from koguma.model.resource import is_same
from koguma.model.schema import Json
from koguma.model.violation import Violation, child, item

LENGTH_MAX: Final = 5_000  # characters of an expression
RULES_MAX: Final = 200  # in one schema
_REASONS: Final = {
    "FieldValueInvalid": "invalid",
    "FieldValueForbidden": "forbidden",
    "FieldValueRequired": "required",
    "FieldValueDuplicate": "duplicate",
}
_FIELDS: Final = ("rule", "message", "messageExpression", "reason", "fieldPath", "optionalOldSelf")
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_OLD: Final = re.compile(r"\boldSelf\b")
_PATH: Final = re.compile(r"(?:\.[A-Za-z_][A-Za-z0-9_-]*|\['[^']+'\])+")
_ESCAPES: Final = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_RESERVED: Final = re.compile(
    r"true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return"
    r"|var|void|while"
)


def schema_violations(schema: Json, path: str) -> Iterator[Violation]:
    """What is wrong with the rules of a schema."""
    n_rules = 0
    for node, at in _nodes(schema, path):
        rules = node[RULES]
        if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
            yield field_errors.invalid(f"{at}.{RULES}", "array", "must be a list of rules", "type")
            continue
        n_rules += len(rules)
        for index, rule in enumerate(rules):
            yield from _rule_violations(rule, node, item(f"{at}.{RULES}", index))
    if n_rules > RULES_MAX:
        yield field_errors.too_many(f"{path}.{RULES}", n_rules, RULES_MAX)


def _nodes(schema: Json, path: str) -> Iterator[tuple[Json, str]]:
    """All parts of a schema that have rules."""
    if schema.get(RULES):
        yield schema, path
    for name, field in properties(schema).items():
        yield from _nodes(field, f"{path}.properties[{name}]")
    others, items = values(schema), schema.get("items")
    if others is not None:
        yield from _nodes(others, f"{path}.additionalProperties")
    if isinstance(items, dict):
        yield from _nodes(items, f"{path}.items")


def _rule_violations(rule: Json, schema: Json, path: str) -> Iterator[Violation]:
    for name in _FIELDS[:-1]:
        if not isinstance(rule.get(name, ""), str):
            yield field_errors.invalid(f"{path}.{name}", rule[name], "must be a string", "type")
            return
    if not str(rule.get("rule") or "").strip():
        yield field_errors.required(f"{path}.rule", "rule is not specified")
        return
    if rule.get("reason") and rule["reason"] not in _REASONS:
        yield field_errors.unsupported(f"{path}.reason", rule["reason"], sorted(_REASONS))
    if "\n" in rule.get("message", "").strip():
        yield field_errors.invalid(f"{path}.message", rule["message"], "message must not contain line breaks")
    if "\n" in rule["rule"] and not rule.get("message"):
        yield field_errors.required(
            f"{path}.message", "message must be specified if rule contains line breaks"
        )
    field = rule.get("fieldPath")
    if field and (not _PATH.fullmatch(field) or _below(schema, field) is None):
        yield field_errors.invalid(f"{path}.fieldPath", field, "must be the path of a field below the rule")
    for name, type_ in (("rule", BOOL), ("messageExpression", STRING)):
        text = rule.get(name)
        if not text:
            continue
        if len(text) > LENGTH_MAX:
            yield field_errors.too_long(f"{path}.{name}", LENGTH_MAX)
            continue
        try:
            _program(text, type_, is_optional=bool(rule.get("optionalOldSelf")))
        except CelError as error:
            yield field_errors.invalid(f"{path}.{name}", text, f"compilation failed: {error}")


@lru_cache(maxsize=4096)
def _program(text: str, type_: str, *, is_optional: bool) -> CelProgram:
    if is_optional:
        text = f"cel.bind(oldSelf, hasOld ? optional.of(oldValue) : optional.none(), {text})"
        return compiled(text, ("self", "oldValue", "hasOld"), type_)
    return compiled(text, ("self", "oldSelf"), type_)


def violations(value: Json, schema: Json, path: str = "", old: Json = MISSING) -> Iterator[Violation]:
    """The rules that a value breaks; rules about what did not change are not asked again."""
    for rule in schema.get(RULES) or ():
        yield from _broken(rule, value, schema, path, old)
    before = old if isinstance(old, dict) else {}
    if isinstance(value, dict):
        named, others = properties(schema), values(schema)
        for name, field in value.items():
            field_schema = named.get(name, others)
            if field_schema is not None and has_rules(field_schema):
                yield from violations(field, field_schema, child(path, name), before.get(name, MISSING))
    elif isinstance(value, list) and isinstance(schema.get("items"), dict) and has_rules(schema["items"]):
        items, keys = schema["items"], schema.get(LIST_KEYS) or []
        is_map = schema.get(LIST_TYPE) == "map" and isinstance(old, list)
        replaced = {list_key(each, keys, items): each for each in old} if is_map else {}
        for index, each in enumerate(value):
            was = replaced.get(list_key(each, keys, items), MISSING) if is_map else MISSING
            yield from violations(each, items, item(path, index), was)


def has_rules(schema: Json) -> bool:
    """Whether a schema or a part of it has rules."""
    return next(_nodes(schema, ""), None) is not None


def _broken(rule: Json, value: Json, schema: Json, path: str, old: Json) -> Iterator[Violation]:
    is_optional = bool(rule.get("optionalOldSelf"))
    asks_old = is_transition(rule["rule"])
    if value is None or (asks_old and not is_optional and old is MISSING):
        return
    if not asks_old and old is not MISSING and is_same(value, old):
        return
    before = None if old is MISSING else cel_value(old, schema)
    variables = {"self": cel_value(value, schema)}
    variables |= {"oldValue": before, "hasOld": old is not MISSING} if is_optional else {"oldSelf": before}
    at = f"{path}{rule['fieldPath']}".lstrip(".") if rule.get("fieldPath") else path
    shown = schema.get("type") or "object"
    try:
        holds = _program(rule["rule"], BOOL, is_optional=is_optional)(variables)
    except CelError as error:
        about = rule.get("message") or rule["rule"]
        yield field_errors.invalid(at or "<nil>", shown, f"{error} evaluating rule: {about}", "rule")
        return
    if not holds:
        message = _message(rule, variables, is_optional=is_optional)
        yield _violation(rule.get("reason") or "FieldValueInvalid", at or "<nil>", shown, message)


def _violation(reason: str, path: str, shown: str, message: str) -> Violation:
    match _REASONS[reason]:
        case "forbidden":
            return field_errors.forbidden(path, message)
        case "required":
            return field_errors.required(path, message)
        case "duplicate":
            return field_errors.duplicate(path, shown)
        case _:
            return field_errors.invalid(path, shown, message, "rule")


def _message(rule: Json, variables: Json, *, is_optional: bool) -> str:
    if rule.get("messageExpression"):
        try:
            found = _program(rule["messageExpression"], STRING, is_optional=is_optional)(variables)
        except CelError:
            found = ""
        if isinstance(found, str) and found.strip() and "\n" not in found:
            return found.strip()
    return rule.get("message") or f"failed rule: {rule['rule'].strip()}"


def is_transition(text: str) -> bool:
    """Whether an expression asks for the value before the change."""
    return _OLD.search(_TEXT.sub("", text)) is not None


def escaped(name: str) -> str:
    """The name of a field as rules write it."""
    if _RESERVED.fullmatch(name):
        return f"__{name}__"
    for mark, word in _ESCAPES:
        name = name.replace(mark, word)
    return name


def cel_value(value: Json, schema: Json) -> Json:
    """A value as rules see it: times are times, and names that CEL cannot write are escaped."""
    if isinstance(value, dict):
        named, others = properties(schema), values(schema)
        return {
            escaped(name) if name in named else name: cel_value(field, named.get(name, others) or {})
            for name, field in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema.get("items"), dict) else {}
        return [cel_value(each, items) for each in value]
    if isinstance(value, str) and schema.get("format") in ("date-time", "datetime"):
        return times.read(value.upper()) or value
    if isinstance(value, float) and schema.get("type") == "integer":
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "number":
        return float(value)
    return value


def _below(schema: Json, path: str) -> Json | None:
    """The schema of a field below another."""
    for dotted, quoted in re.findall(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\['([^']+)'\]", path):
        found = properties(schema).get(dotted or quoted, values(schema))
        if found is None:
            return None
        schema = found
    return schema
