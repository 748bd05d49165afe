"""CEL rules (`x-kubernetes-validations`) of a schema: compiled when it is written, evaluated on every object.

Fields whose names are no identifiers are escaped as Kubernetes does it: `self.a__dash__b`. Where a rule asks
for `oldSelf`, it is a transition rule, and holds for changes only.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from google.protobuf import duration_pb2, timestamp_pb2

from koguma.kube import field_errors, times
from koguma.kube.cel import BOOL, STRING, CelError, CelProgram, CelShape, compiled
from koguma.kube.structural.words import LIST_KEYS, LIST_TYPE, MISSING, RULES, list_key, properties, values
from koguma.model import duration
from koguma.model.resource import is_same
from koguma.model.schema import Json
from koguma.model.violation import Violation, child, item

LENGTH_MAX: Final = 5_000  # characters of an expression
RULES_MAX: Final = 200  # in one schema
EVALUATIONS_MAX: Final = 20_000  # of rules, for one object; each may go through 10,000 items
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
_TIMES: Final = {
    "date": "timestamp",
    "date-time": "timestamp",
    "datetime": "timestamp",
    "duration": "duration",
}
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
            _program(text, type_, _shape(schema), is_optional=bool(rule.get("optionalOldSelf")))
        except CelError as error:
            yield field_errors.invalid(f"{path}.{name}", text, f"compilation failed: {error}")


@lru_cache(maxsize=4096)
def _program(text: str, type_: str, shape: CelShape, *, is_optional: bool) -> CelProgram:
    if is_optional:
        text = f"cel.bind(oldSelf, hasOld ? optional.of(oldValue) : optional.none(), {text})"
        return compiled(text, ("self", "oldValue", "hasOld"), type_)
    return compiled(text, ("self", "oldSelf"), type_, shape)


def _shape(schema: Json) -> CelShape:
    """What a part of an object is to its rules."""
    if schema.get("nullable"):
        return ("dyn",)
    match schema.get("type"):
        case "string":
            return (_TIMES.get(schema.get("format") or "", "string"),)
        case "boolean":
            return ("bool",)
        case "array" if isinstance(schema.get("items"), dict):
            return ("list", *_shape(schema["items"]))
        case "object":
            others = values(schema)
            return ("map", *(_shape(others) if others is not None else ("dyn",)))
        case _:
            return ("dyn",)


def violations(value: Json, schema: Json, path: str = "", old: Json = MISSING) -> Iterator[Violation]:
    """The rules that a value breaks; rules about what did not change are not asked again."""
    return _RuleWalk().violations(value, schema, path, old)


class _RuleWalk:
    """Asks the rules of all parts of one object, and no more of them than is reasonable."""

    def __init__(self) -> None:
        self._n_asked = 0
        self._with_rules: dict[int, bool] = {}  # by the identity of a schema, which outlives the walk

    def violations(self, value: Json, schema: Json, path: str, old: Json) -> Iterator[Violation]:
        """The rules that a value breaks, and those of its parts."""
        for rule in schema.get(RULES) or ():
            self._n_asked += 1
            if self._n_asked > EVALUATIONS_MAX:
                if self._n_asked == EVALUATIONS_MAX + 1:
                    what = f"its rules would be evaluated more than {EVALUATIONS_MAX} times"
                    yield field_errors.forbidden(path or "<nil>", what)
                return
            yield from _broken(rule, value, schema, path, old)
        if isinstance(value, dict):
            yield from self._fields(value, schema, path, old)
        elif isinstance(value, list):
            yield from self._items(value, schema, path, old)

    def _fields(self, value: dict[str, Json], schema: Json, path: str, old: Json) -> Iterator[Violation]:
        before = old if isinstance(old, dict) else {}
        named, others = properties(schema), values(schema)
        for name, field in value.items():
            field_schema = named.get(name, others)
            if field_schema is not None and self._has_rules(field_schema):
                yield from self.violations(field, field_schema, child(path, name), before.get(name, MISSING))

    def _items(self, value: list[Json], schema: Json, path: str, old: Json) -> Iterator[Violation]:
        items, keys = schema.get("items"), schema.get(LIST_KEYS) or []
        if not isinstance(items, dict) or not self._has_rules(items):
            return
        is_map = schema.get(LIST_TYPE) == "map" and isinstance(old, list)
        replaced = {list_key(each, keys, items): each for each in old} if is_map else {}
        for index, each in enumerate(value):
            was = replaced.get(list_key(each, keys, items), MISSING) if is_map else MISSING
            yield from self.violations(each, items, item(path, index), was)

    def _has_rules(self, schema: Json) -> bool:
        known = self._with_rules.get(id(schema))
        if known is None:
            known = self._with_rules[id(schema)] = has_rules(schema)
        return known


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
        holds = _program(rule["rule"], BOOL, _shape(schema), is_optional=is_optional)(variables)
    except CelError as error:
        about = rule.get("message") or rule["rule"]
        yield field_errors.invalid(at or "<nil>", shown, f"{error} evaluating rule: {about}", "rule")
        return
    if not holds:
        message = _message(rule, variables, _shape(schema), is_optional=is_optional)
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


def _message(rule: Json, variables: Json, shape: CelShape, *, is_optional: bool) -> str:
    if rule.get("messageExpression"):
        try:
            found = _program(rule["messageExpression"], STRING, shape, is_optional=is_optional)(variables)
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
    if isinstance(value, str) and schema.get("format") in _TIMES:
        return _time(value, schema["format"])
    if isinstance(value, float) and schema.get("type") == "integer":
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "number":
        return float(value)
    return value


def _time(text: str, format_: str) -> Json:
    """A moment or a span as the library has it; the text where it is none."""
    if format_ == "duration":
        return (
            duration_pb2.Duration(seconds=int(duration.seconds(text))) if duration.is_duration(text) else text
        )
    moment = times.read(f"{text}T00:00:00Z" if format_ == "date" else text.upper())
    if moment is None:
        return text
    read = timestamp_pb2.Timestamp()
    read.FromDatetime(moment)
    return read


def _below(schema: Json, path: str) -> Json | None:
    """The schema of a field below another."""
    for dotted, quoted in re.findall(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\['([^']+)'\]", path):
        found = properties(schema).get(dotted or quoted, values(schema))
        if found is None:
            return None
        schema = found
    return schema
