"""Specs at random that a kind takes: drawn from its types with likely words, then mended.

What is wrong with a draw is taken away, place by place, until nothing is; where that leaves nothing to take
away, the example of the kind's manual stands in. So draws reach deep and are still legal.
"""

import copy
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect as shape

from koguma.main import all_kinds
from koguma.model import documents
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext
from koguma.model.schema import UNKNOWN

KINDS = tuple(kind for kind in all_kinds() if kind.group == "kuma.io")
ABOUT = ValidationContext(control_plane=ControlPlaneInfo(), name="it", mesh="default")
ROUNDS = 40

MESH = {"kind": "Mesh"}
REFS = (
    MESH,
    MESH,
    MESH,
    {"kind": "Mesh", "proxyTypes": ["Sidecar"]},
    {"kind": "Dataplane", "labels": {"team": "x"}},
    {"kind": "Dataplane", "name": "web", "sectionName": "http"},
    {"kind": "MeshSubset", "tags": {"version": "v1"}},
    {"kind": "MeshService", "name": "backend"},
    {"kind": "MeshServiceSubset", "name": "backend", "tags": {"version": "v2"}},
    {"kind": "MeshHTTPRoute", "name": "route"},
)
TEXTS = ("backend", "/api", "10.0.0.1", "a.example.com", "10.0.0.1:80", "http://a:1", "50", "5kbps", "5xx")
BY_FORMAT = {"duration": ("5s", "1m", "100ms"), "base64": ("YQ==", "LS0tLQ==")}
JSON = st.sampled_from([None, True, 1, "a", [1, None], {"a": None}])


def values(info: shape.Type, extra: Mapping[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """JSON that fits a type, nulls among it."""
    match info:
        case shape.Metadata(type=inner, extra=more):
            return values(inner, more or extra)
        case shape.StructType(cls=cls) if cls.__name__ == "TargetRef":
            return st.sampled_from(REFS)
        case shape.StructType(fields=fields):
            needed = {f.encode_name: values(f.type) for f in fields if f.required}
            optional = {f.encode_name: values(f.type) for f in fields if not f.required}
            return st.fixed_dictionaries(needed, optional=optional)
        case shape.StrType():
            return st.sampled_from(BY_FORMAT.get((extra or {}).get("format", ""), TEXTS))
        case shape.IntType(ge=low, le=high):
            return st.sampled_from(sorted({max(low or 1, 1), min(high or 503, 503)}))
        case shape.UnionType(types=types):
            return st.one_of([values(each, extra) for each in types])
        case shape.VarTupleType(item_type=inner) | shape.ListType(item_type=inner):
            return st.lists(values(inner), max_size=2)
        case shape.DictType(value_type=inner):
            return st.dictionaries(st.sampled_from(["kuma.io/service", "version"]), values(inner), max_size=2)
        case _:
            return scalars(info)


def scalars(info: shape.Type) -> st.SearchStrategy[Any]:
    match info:
        case shape.LiteralType(values=words):
            return st.sampled_from(words)
        case shape.BoolType():
            return st.booleans()
        case shape.FloatType():
            return st.sampled_from([0, 50.5])
        case shape.NoneType():
            return st.none()
        case _:
            return JSON


@cache
def valid(kind: Kind) -> st.SearchStrategy[Any]:
    """Specs that the kind takes."""
    return values(shape.type_info(kind.spec)).map(lambda drawn: mended(kind, drawn))


def mended(kind: Kind, drawn: Any) -> Any:
    spec = copy.deepcopy(drawn)
    for _ in range(ROUNDS):
        wrong = next(iter(kind.violations(spec, ABOUT)), None)
        if wrong is None:
            return spec
        field = wrong.field if kind.inline else wrong.field.removeprefix("spec").removeprefix(".")
        if not _taken(spec, [key or index or name for key, index, name in _STEP.findall(field)]):
            break
    return example(kind)


_STEP = re.compile(r'\["([^"]+)"\]|\[(\d+)\]|([^.\[]+)')


def _taken(spec: Any, steps: list[str]) -> bool:
    """Take away what stands at a path or, where nothing does, what is around it; of the whole, `rules`."""
    if not steps:
        return isinstance(spec, dict) and spec.pop("rules", None) is not None
    found = [spec]
    for step in steps:
        if isinstance(found[-1], list) and step.isdecimal() and int(step) < len(found[-1]):
            found.append(found[-1][int(step)])
        elif isinstance(found[-1], dict) and step in found[-1]:
            found.append(found[-1][step])
        else:
            break
    if len(found) == 1:
        return False
    around, step = found[-2], steps[len(found) - 2]
    del around[int(step) if isinstance(around, list) else step]
    return True


# What policies that once had `from` say, so that its entries are as likely as those of other lists.
CONFS: Mapping[str, tuple[Any, ...]] = {
    "MeshAccessLog": (
        {"backends": []},
        {"backends": [{"type": "File", "file": {"path": "/a"}, "tcp": None}]},
        {"backends": [{"type": "File", "file": {"path": "/b", "format": None}}]},
    ),
    "MeshCircuitBreaker": (
        {"connectionLimits": {"maxConnections": 1, "maxRetries": None}},
        {"connectionLimits": {"maxConnections": 2, "maxRequests": 3}},
        {"connectionLimits": {"maxRequests": 4}, "outlierDetection": None},
    ),
    "MeshRateLimit": (
        {"local": {"http": {"requestRate": {"num": 1, "interval": "1s"}}}},
        {"local": {"http": {"requestRate": {"num": 2, "interval": "2s"}, "onRateLimit": None}}},
        {"local": {"http": {"disabled": True}, "tcp": None}},
    ),
    "MeshTLS": (
        {"mode": "Strict"},
        {"mode": "Permissive", "tlsVersion": None},
        {"tlsVersion": {"min": "TLS12"}},
    ),
    "MeshTimeout": (
        {"connectionTimeout": "1s"},
        {"connectionTimeout": "2s", "http": {"requestTimeout": "3s", "streamIdleTimeout": None}},
        {"idleTimeout": "4s", "http": None},
    ),
}
CALLERS = ([], [{"spiffeID": {"type": "Exact", "value": "spiffe://default/web"}, "sni": None}])


@cache
def with_from(kind: Kind) -> st.SearchStrategy[Any]:
    """Specs with several entries in `to`, `from` and `rules`, in which the order decides."""
    conf = st.fixed_dictionaries({"default": st.sampled_from(CONFS[kind.name])})
    to = conf.map(lambda entry: {"targetRef": MESH, **entry})
    rule = st.one_of(
        conf, st.builds(lambda entry, who: {**entry, "matches": who}, conf, st.sampled_from(CALLERS))
    )
    lists = {
        "to": st.lists(to, max_size=2),
        "from": st.lists(to, max_size=3),
        "rules": st.lists(rule, max_size=3),
    }
    parts = {"targetRef": st.one_of(st.none(), st.sampled_from(REFS[:7])), **lists}
    return st.fixed_dictionaries({}, optional=parts).map(lambda drawn: mended(kind, drawn))


def specs(kind: Kind) -> st.SearchStrategy[Any]:
    """Specs that the kind takes, of all sorts."""
    return st.one_of(valid(kind), with_from(kind)) if kind.name in CONFS else valid(kind)


@cache
def examples(kind: Kind) -> tuple[Any, ...]:
    """The specs that a kind's manual shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", kind.doc, re.DOTALL)
    return tuple(_spec(kind, document.value) for block in blocks for document in documents.load(block))


def _spec(kind: Kind, document: Any) -> Any:
    own = {name: part for name, part in document.items() if name not in ("type", "name", "mesh", "labels")}
    return own if kind.inline else own.get("spec", {})


def example(kind: Kind) -> Any:
    return copy.deepcopy(examples(kind)[0]) if examples(kind) else {}


def is_valid(kind: Kind, spec: Any) -> bool:
    return not [v for v in kind.violations(spec, ABOUT) if v.rule != UNKNOWN]
