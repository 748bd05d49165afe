"""Whatever is written, a policy answers with violations and never with an exception."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect as shape

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext
from koguma.policies import POLICIES

pytestmark = pytest.mark.slow

PLACES = st.sampled_from(["", "kuma-system", "shop"])

# Words that come close to what the fields take, so that checks beyond the schema are reached.
# fmt: off
WORDS = (
    "Mesh", "a", "a.b", "*.a.b", "*a", "*", "10.0.0.1", "10.0.0.0/8", "::1", "fe80::%1/64", "http://a:1",
    "https://u@[::1]:99999/p?q#f", "http://[", "ftp://a", "://a", "host:0", "host:80", "[::1]:1", "[x]:1",
    "/x", "/", "a/b", "-0.5", "50", "100.1", "1e3", ".5", "NaN", "0x1", "spiffe://d/x", "Mbps", "5kbps",
    "%A%", "otel.a", "a..b", "(", "(?=a)", "{a:1}", "-", "&a[*a]", "http", "65536", "!!timestamp",
    "", " ", "\0", "\n", "\ud800", '"\\', "a: [", "a: 2001-99-99", "!!python/name:os.system ''", "[" * 3000,
)
# fmt: on
KEYS = [word for word in WORDS if word != "\ud800"]  # half a pair in a name is for the decoder to refuse
DURATIONS = ("0s", "5s", "-1s", "50ms", "51ms", "2h", "0")
NUMBERS = st.sampled_from([-1, 0, 1, 50, 99, 100, 101, 599, 600, 65535, 65536, 2**32, 2**63, 10**400])

JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.sampled_from(WORDS) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def written(info: shape.Type, extra: dict[str, str] | None = None) -> st.SearchStrategy:
    """Values that mostly fit a type, as somebody might write them."""
    match info:
        case shape.Metadata(type=inner, extra=more):
            return written(inner, more or extra)
        case shape.StructType(fields=fields):
            parts = {f.encode_name: written(f.type) for f in fields}
            needed = {name: parts.pop(name) for name in [f.encode_name for f in fields if f.required]}
            return st.fixed_dictionaries(needed, optional=parts)
        case shape.StrType():
            duration = (extra or {}).get("format") == "duration"
            return st.sampled_from(DURATIONS) if duration else st.sampled_from(WORDS)
        case shape.IntType():
            return NUMBERS
        case shape.BoolType():
            return st.booleans()
        case shape.NoneType():
            return st.none()
        case shape.LiteralType(values=values):
            return st.sampled_from(values)
        case shape.ListType() | shape.VarTupleType():
            return st.lists(written(info.item_type, extra), max_size=2)
        case shape.DictType():
            return st.dictionaries(st.sampled_from(KEYS), written(info.value_type), max_size=2)
        case shape.UnionType(types=types):
            return st.one_of([written(each, extra) for each in types])
        case _:
            return JSON


MODEST = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def judged(kind: Kind, spec, namespace: str) -> None:
    context = ValidationContext(
        control_plane=ControlPlaneInfo(), name="it", mesh="default", namespace=namespace
    )
    violations = list(kind.violations(spec, context))
    assert all(v.field.startswith("spec") and v.message for v in violations)
    if not violations:
        assert msgspec.to_builtins(kind.read(kind.clean(spec))) is not None
        assert all(list(kind.warn(kind.read(kind.clean(spec)), context)))


@pytest.mark.property
@pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: kind.name)
def test_no_json_at_all_is_too_strange(kind: Kind) -> None:
    MODEST(given(JSON, PLACES)(lambda spec, namespace: judged(kind, spec, namespace)))()


@pytest.mark.property
@pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: kind.name)
def test_no_policy_that_nearly_fits_is_too_strange(kind: Kind) -> None:
    near = written(shape.type_info(kind.spec))
    MODEST(given(near, PLACES)(lambda spec, namespace: judged(kind, spec, namespace)))()


def test_yaml_that_is_nested_too_deeply_is_refused() -> None:
    change = {"cluster": {"operation": "Add", "value": "a: " + "[" * 5000 + "]" * 5000}}
    kind = next(kind for kind in POLICIES if kind.name == "MeshProxyPatch")
    spec = {"default": {"appendModifications": [change]}}
    [violation] = kind.violations(spec, ValidationContext(control_plane=ControlPlaneInfo(), name="it"))
    assert violation.message == "native Envoy resource is not valid: it is nested too deeply"
