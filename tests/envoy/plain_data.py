"""Plain Envoy data made from the messages' own descriptions, for properties that hold for all of it."""

import functools
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from koguma.envoy import schema, values
from koguma.envoy.constraints import NO_RULES, Constraints, Rules
from koguma.envoy.conversion import ConversionError

SCHEMA = schema.load(schema.find_envoy())
CONSTRAINTS = Constraints(SCHEMA)
PREFIX = "type.googleapis.com/"

# What fields of each sort are offered; rules then choose among it.
TEXTS = ["", "a", "x-b", "/a", "%c%", "ö€", "spiffe://m/b", "http", "10.0.0.1", "LH", "a\nb", "y" * 300]
NUMBERS = [0, 1, 2, 7, 100, 255, 256, 404, 600, 1024, 65535, 65536, 2**31 - 1]
LARGE = [*NUMBERS, 2**32, 2**53 + 1, 2**63 - 1, "17"]
FRACTIONS = [0.0, 0.5, 1.0, 1.5, 99.9, 101.0, -1.5, 1e300, "Infinity"]
DURATIONS = ["0s", "0.001s", "0.000000001s", "1s", "5s", "3600s", "4294967296s", "-1.5s"]
INSTANTS = ["1970-01-01T00:00:00Z", "2030-01-31T12:00:00.250Z", "1969-12-31T23:59:59.999999999Z"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from(["", "v", "fields"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)
ANYS = ("envoy.config.core.v3.Metadata", "google.protobuf.StringValue", "google.protobuf.Empty")
SPECIAL = {
    "Duration": (st.sampled_from(DURATIONS), values.duration_ns),
    "Timestamp": (st.sampled_from(INSTANTS), values.timestamp_ns),
    "Struct": (st.dictionaries(st.sampled_from(["a", "b", "fields"]), JSON, max_size=2), None),
    "ListValue": (st.lists(JSON, max_size=2), None),
    "Value": (JSON, None),
    "FieldMask": (st.sampled_from(["", "a", "a.bC,d"]), None),
}


def plain_data(full_name: str, depth: int = 4) -> st.SearchStrategy[Any]:
    """Data for a message, of which most keeps the rules of single fields."""
    return message(SCHEMA.descriptor(full_name), depth)


@functools.cache
def message(described: Descriptor, depth: int) -> st.SearchStrategy[Any]:
    name = described.full_name
    short = name.removeprefix("google.protobuf.")
    if name == "google.protobuf.Any":
        return st.sampled_from(ANYS).flatmap(lambda chosen: packed(chosen, depth))
    if name != short and short in SPECIAL:
        return SPECIAL[short][0]
    if name != short and short.endswith("Value"):
        return single(described.fields_by_name["value"], NO_RULES, depth)
    return st.deferred(lambda: fields(described, depth))


def packed(full_name: str, depth: int) -> st.SearchStrategy[Any]:
    inner = plain_data(full_name, max(depth - 1, 0))
    url = PREFIX + full_name
    if full_name == "google.protobuf.StringValue":
        return inner.map(lambda value: {"@type": url, "value": value})
    return inner.map(lambda data: {"@type": url, **data})


def fields(described: Descriptor, depth: int) -> st.SearchStrategy[Any]:
    """A map with what must be there, and some of the rest: of each oneof at most one."""
    rules = {field.name: CONSTRAINTS.of_field(field) for field in described.fields}
    usable = [
        field for field in described.fields if not rules[field.name].refused and fits_depth(field, depth)
    ]
    made = {field.name: value_of(field, rules[field.name], depth) for field in usable}
    must = {f.name for f in usable if f.containing_oneof is None and needed(f, rules[f.name])}
    choices = [
        ([f.name for f in oneof.fields if f.name in made], CONSTRAINTS.required(oneof))
        for oneof in described.oneofs
    ]
    free = [f.name for f in usable if f.containing_oneof is None and f.name not in must]

    @st.composite
    def draw_fields(draw: Any) -> dict[str, Any]:
        names = set(must)
        if free:
            names |= draw(st.sets(st.sampled_from(free), max_size=3))
        for members, required in choices:
            if members and (required or draw(st.integers(0, 3)) == 0):
                names.add(draw(st.sampled_from(members)))
        spelled = {f.name: f.json_name if draw(st.integers(0, 7)) == 0 else f.name for f in usable}
        return {spelled[name]: draw(made[name]) for name in sorted(names)}

    return draw_fields()


def fits_depth(field: FieldDescriptor, depth: int) -> bool:
    described = field.message_type
    return depth > 0 or described is None or described.full_name.startswith("google.protobuf.")


def needed(field: FieldDescriptor, rules: Rules) -> bool:
    if rules.required:
        return True
    zero = [] if field.is_repeated else None if field.has_presence else field.default_value
    return zero is not None and not all(check.fits(zero) for check in rules.checks)


def value_of(field: FieldDescriptor, rules: Rules, depth: int) -> st.SearchStrategy[Any]:
    described = field.message_type
    if described is not None and described.GetOptions().map_entry:
        value = single(described.fields_by_name["value"], rules.items or NO_RULES, depth)
        keys = single(described.fields_by_name["key"], rules.keys or NO_RULES, depth).map(str)
        return st.dictionaries(keys, value, min_size=int(bool(rules.checks)), max_size=2)
    if field.is_repeated:
        item = single(field, rules.items or NO_RULES, depth)
        return st.lists(item, min_size=int(bool(rules.checks)), max_size=2)
    return single(field, rules, depth)


def single(field: FieldDescriptor, rules: Rules, depth: int) -> st.SearchStrategy[Any]:
    described = field.message_type
    if described is None:
        return st.sampled_from(good(offered(field), parser(field), rules))
    short = described.full_name.removeprefix("google.protobuf.")
    if short in ("Duration", "Timestamp"):
        offers = DURATIONS if short == "Duration" else INSTANTS
        return st.sampled_from(good(offers, SPECIAL[short][1], rules))
    if short != described.full_name and short.endswith("Value") and short not in SPECIAL:
        return single(described.fields_by_name["value"], rules, depth)
    return message(described, depth - 1)


def parser(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return values.enum(field.enum_type)
    return values.SCALARS[field.type]


def offered(field: FieldDescriptor) -> list[Any]:
    if field.enum_type is not None:
        return [*field.enum_type.values_by_name, 0]
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return [False, True]
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return ["", "YQ==", "_-8", "AAECAw=="]
        case FieldDescriptor.CPPTYPE_STRING:
            return TEXTS
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return FRACTIONS
        case FieldDescriptor.CPPTYPE_INT64 | FieldDescriptor.CPPTYPE_UINT64:
            return LARGE
        case _:
            return NUMBERS


def good(offers: list[Any], parse: Any, rules: Rules) -> list[Any]:
    """The offers that keep the rules; all of them where none does, as the data is then simply refused."""

    def fits(offer: Any) -> bool:
        try:
            value = parse(offer)
        except ConversionError:
            return False
        return all(check.fits(value) for check in rules.checks)

    return [offer for offer in offers if fits(offer)] or offers
