"""Schemas of the Kubernetes form: one OpenAPI subset for all clients from the types that are checked."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec
import pytest
import re2
import yaml

from koguma.kube import meta_schemas, schemas
from koguma.kube.registry import IDENTITY, Registry
from koguma.kube.schemas import ObjectParts, Schemas
from koguma.model.kind import Kind
from koguma.model.schema import Base64, IntOrString, Json, SecretBase64, Spec, doc
from tests.kube.described import ALL_KINDS, NATIVE, REGISTRY, REVIEW, SCHEMAS, native, stored

pytestmark = pytest.mark.slow

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
KEYWORDS = {
    *("$ref", "description", "type", "format", "pattern", "enum", "nullable", "readOnly"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
    *("properties", "required", "additionalProperties", "items", "default"),
}


def nodes(schema: Json) -> Iterator[Json]:
    """A schema and all schemas in it."""
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from nodes(inner)
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from nodes(schema[keyword])


ALL_NODES = [(name, node) for name, made in SCHEMAS.definitions.items() for node in nodes(made)]


def test_every_reference_leads_to_a_definition():
    missing = {
        to for definition in SCHEMAS.definitions.values() for to in schemas.references(definition)
    } - SCHEMAS.definitions.keys()
    assert missing == set()


def test_no_schema_uses_a_word_that_some_client_does_not_read():
    odd = {
        (name, word)
        for name, node in ALL_NODES
        for word in node
        if word not in KEYWORDS and not word.startswith("x-kubernetes-")
    }
    assert odd == set()


def test_every_schema_has_one_type_or_says_why_not():
    untyped = ("$ref", meta_schemas.ANYTHING, "x-kubernetes-int-or-string")
    odd = [
        (name, node)
        for name, node in ALL_NODES
        if not isinstance(node.get("type"), str) and not any(word in node for word in untyped)
    ]
    assert odd == []
    assert [node for _, node in ALL_NODES if "$ref" in node and "type" in node] == []


def test_every_list_says_what_it_holds_and_every_required_field_exists():
    assert [name for name, node in ALL_NODES if node.get("type") == "array" and "items" not in node] == []
    lost = [
        (name, field)
        for name, node in ALL_NODES
        for field in node.get("required", ())
        if field not in node["properties"]
    ]
    assert lost == []


def test_every_pattern_can_be_read_by_clients_in_go():
    patterns = {node["pattern"] for _, node in ALL_NODES if isinstance(node.get("pattern"), str)}
    assert patterns
    for pattern in patterns:
        re2.compile(pattern)  # raises on what only Python understands


@pytest.mark.parametrize(
    ("group", "version", "kind", "name"),
    [
        ("kuma.io", "v1alpha1", "MeshTimeout", "io.kuma.v1alpha1.MeshTimeout"),
        ("koguma.io", "v1", "MeshTimeout", "io.koguma.v1.MeshTimeout"),
        ("", "v1", "ConfigMap", "io.k8s.api.core.v1.ConfigMap"),
        ("rbac.authorization.k8s.io", "v1", "Role", "io.k8s.api.rbac.v1.Role"),
        ("coordination.k8s.io", "v1", "Lease", "io.k8s.api.coordination.v1.Lease"),
        ("apps", "v1", "Deployment", "io.k8s.api.apps.v1.Deployment"),
        ("demo.example.com", "v1", "Widget", "com.example.demo.v1.Widget"),
    ],
)
def test_a_definition_has_the_name_that_kubernetes_would_give_it(group, version, kind, name):
    assert schemas.definition_name(group, version, kind) == name


@pytest.mark.parametrize("endpoint", list(REGISTRY), ids=lambda e: f"{e.api_version}-{e.kind_name}")
def test_an_endpoint_is_found_by_what_its_objects_say_of_themselves(endpoint):
    definition = SCHEMAS.of(endpoint)
    expected = {"group": endpoint.group, "version": endpoint.version, "kind": endpoint.kind_name}
    assert definition["x-kubernetes-group-version-kind"] == [expected]
    assert {"apiVersion", "kind", "metadata"} <= definition["properties"].keys()
    assert definition["description"]
    assert (schemas.list_name_of(endpoint) in SCHEMAS.definitions) is ("list" in endpoint.verbs)


def test_no_two_kinds_are_found_by_the_same_words():
    expected = [
        tuple(sorted(each.items()))
        for definition in SCHEMAS.definitions.values()
        for each in definition.get("x-kubernetes-group-version-kind", ())
    ]
    assert len(expected) == len(set(expected))


def test_all_fields_of_metadata_are_described():
    definition = SCHEMAS.definitions[f"{META}ObjectMeta"]["properties"]
    words = (
        "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName "
    )
    words += "generation labels managedFields name namespace ownerReferences resourceVersion selfLink uid"
    assert sorted(definition) == words.split()
    assert all(field["description"] for field in definition.values())
    assert definition["ownerReferences"]["x-kubernetes-list-map-keys"] == ["uid"]
    assert definition["finalizers"]["x-kubernetes-list-type"] == "set"


def test_the_spec_of_our_kinds_stands_under_spec_and_native_fields_at_the_root():
    timeout = SCHEMAS.of(REGISTRY.find("kuma.io", "v1alpha1", "meshtimeouts"))["properties"]
    assert sorted(timeout) == ["apiVersion", "kind", "kri", "mesh", "metadata", "spec"]
    assert timeout["spec"]["$ref"] == "#/components/schemas/io.kuma.v1alpha1.MeshTimeout.MeshTimeoutSpec"
    service = SCHEMAS.of(REGISTRY.find("koguma.io", "v1", "meshservices"))["properties"]
    assert {"spec", "status"} <= service.keys()
    assert sorted(SCHEMAS.of(NATIVE[0])["properties"]) == ["apiVersion", "data", "kind", "metadata"]
    assert "mesh" not in SCHEMAS.of(REGISTRY.find("kuma.io", "v1alpha1", "zones"))["properties"]


def test_a_page_gives_the_words_and_its_example_does_not():
    words = SCHEMAS.of(REGISTRY.find("kuma.io", "v1alpha1", "meshtimeouts"))["description"]
    assert words.startswith("How long a proxy waits")
    assert "type: MeshTimeout" not in words
    field = SCHEMAS.definitions["io.kuma.v1alpha1.MeshTimeout.TimeoutConf"]["properties"]["connectionTimeout"]
    assert field["description"] == "To establish a TCP connection."


class Inner(Spec):
    """A part."""

    older: Annotated[str | None, doc("An older word.")] = None
    newer: Annotated[str | None, doc("A newer word.")] = None


class Every(Spec):
    """One field of each sort."""

    text: Annotated[str, doc("Text.", min_length=1, max_length=9, pattern="^a")]
    maybe: Annotated[str | None, doc("Text or nothing.")] = None
    port: Annotated[IntOrString, doc("A number or a name.")] = 0
    maybe_port: Annotated[IntOrString | None, doc("A number, a name, or nothing.")] = None
    one: Annotated[Literal["b", "a"], doc("A choice.")] = "a"
    maybe_one: Annotated[Literal["b", "a"] | None, doc("A choice, or nothing.")] = None
    code: Annotated[Literal[301, 302], doc("A number of some.")] = 301
    above: Annotated[int, doc("Above.", gt=3)] = 4
    anything: Annotated[Any, doc("Anything.")] = None
    open: Annotated[dict[str, Any] | None, doc("An open object.")] = None
    texts: Annotated[dict[str, str], doc("Texts by name.")] = msgspec.field(default_factory=dict)
    either: Annotated[str | Inner, doc("Text or an object.")] = ""
    part: Annotated[Inner | None, doc("A part.")] = None
    parts: Annotated[
        tuple[Inner, ...],
        doc("Parts."),
        msgspec.Meta(
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["newer"]}
        ),
    ] = ()
    by_name: Annotated[dict[str, Inner], doc("Parts by name.")] = msgspec.field(default_factory=dict)
    payload: Annotated[Base64, doc("Bytes.")] = ""
    secret: Annotated[SecretBase64, doc("Secret bytes.")] = ""


EVERY = "#/components/schemas/com.example.v1.Every."
INNER = f"{EVERY}Inner"
OPEN = "x-kubernetes-preserve-unknown-fields"


def described(spec: type[Spec], without: tuple[str, ...] = (), **more) -> tuple[Schemas, Json]:
    """The schemas of one kind, and that of its spec."""
    kind = native("Every", "everies", spec, group="example.com", **more)
    gone = {("example.com/v1", "Every"): frozenset(without)}
    built = Schemas(Registry([stored(kind, "v1")]), gone)
    return built, built.resolve(f"{EVERY}{spec.__name__}")


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("text", {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a"}),
        ("maybe", {"type": "string", "nullable": True}),
        ("port", {"x-kubernetes-int-or-string": True}),
        ("maybePort", {"x-kubernetes-int-or-string": True, "nullable": True}),
        ("one", {"type": "string", "enum": ["a", "b"]}),
        ("maybeOne", {"type": "string", "enum": ["a", "b"], "nullable": True}),
        ("code", {"type": "integer", "enum": [301, 302]}),
        ("above", {"type": "integer", "minimum": 3, "exclusiveMinimum": True}),
        ("anything", {OPEN: True}),
        ("open", {"type": "object", OPEN: True, "nullable": True}),
        ("texts", {"type": "object", "additionalProperties": {"type": "string"}}),
        ("either", {OPEN: True}),
        ("part", {"$ref": INNER, "nullable": True}),
        ("byName", {"type": "object", "additionalProperties": {"$ref": INNER}}),
        ("payload", {"type": "string", "format": "byte"}),
        ("secret", {"type": "string", "format": "password"}),
        (
            "parts",
            {
                "type": "array",
                "items": {"$ref": INNER},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["newer"],
            },
        ),
    ],
)
def test_a_type_is_described_in_keywords_that_all_clients_read(field, wanted):
    field_schema = dict(described(Every)[1]["properties"][field])
    assert field_schema.pop("description")
    assert field_schema == wanted


def test_a_field_that_an_endpoint_does_not_have_is_gone_there_and_nowhere_else():
    whole, every = described(Every)
    assert sorted(whole.resolve(INNER)["properties"]) == ["newer", "older"]
    built, less = described(Every, ("spec.maybe", "spec.part.older", "spec.byName.*.newer", "spec.nothing"))

    def fields(schema: Json) -> list[str]:
        return sorted(built.resolve(schema["$ref"])["properties"])

    assert every["properties"].keys() - less["properties"].keys() == {"maybe"}
    assert fields(less["properties"]["part"]) == ["newer"]
    assert fields(less["properties"]["byName"]["additionalProperties"]) == ["older"]
    assert fields(less["properties"]["parts"]["items"]) == ["newer", "older"]


def test_a_type_is_written_once_where_nothing_of_it_is_gone():
    built, _ = described(Every, ("spec.part.nothing", "spec.parts[].nothing", "spec.nothing.older"))
    assert built.definitions.keys() == described(Every)[0].definitions.keys()


def test_what_is_gone_from_a_list_is_not_required_either():
    built, spec = described(Every, ("spec.text", "spec.parts[].older", "mesh"))
    assert "required" not in spec
    assert sorted(built.resolve(spec["properties"]["parts"]["items"]["$ref"])["properties"]) == ["newer"]
    assert "required" not in built.definitions["com.example.v1.Every"]
    assert described(Every)[0].definitions["com.example.v1.Every"]["required"] == ["spec"]


def test_fields_at_the_root_are_left_out_by_their_own_names():
    kind = native("Every", "everies", Every, group="example.com", at_root=True)
    endpoint = stored(kind, "v1")
    built = Schemas(Registry([endpoint]), {("example.com/v1", "Every"): frozenset({"maybe", "part.older"})})
    assert {"text", "part"} <= built.of(endpoint)["properties"].keys()
    assert "maybe" not in built.of(endpoint)["properties"]
    assert built.of(endpoint)["required"] == ["text"]
    assert "older" not in built.resolve(built.of(endpoint)["properties"]["part"]["$ref"])["properties"]


class Tree(Spec):
    """What holds others of its kind."""

    name: Annotated[str, doc("Its name.")] = ""
    children: Annotated[tuple["Tree", ...], doc("What it holds.")] = ()


@pytest.mark.parametrize("without", [(), ("spec.children[].children[].name",)])
def test_a_type_that_holds_itself_ends(without):
    built, spec = described(Tree, without)
    assert spec["properties"]["children"]["items"]["$ref"].startswith(f"{EVERY}Tree")
    assert set(built.reachable("com.example.v1.Every")) <= built.definitions.keys()
    grandchild = spec
    for _ in range(2):
        grandchild = built.resolve(grandchild["properties"]["children"]["items"]["$ref"])
    assert ("name" in grandchild["properties"]) is not bool(without)


class Asked(Spec):
    """A question."""

    verb: Annotated[str, doc("What to do.")]


def test_a_request_that_is_not_stored_is_described_where_somebody_says_how():
    unknown = SCHEMAS.of(REVIEW)["properties"]["spec"]
    assert (unknown["type"], unknown[OPEN]) == ("object", True)
    expected = {
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): ObjectParts("A question.", Asked, Asked)
    }
    built = Schemas(Registry([REVIEW]), parts=expected)
    assert built.of(REVIEW)["description"] == "A question."
    assert "verb" in built.resolve(built.of(REVIEW)["properties"]["status"]["$ref"])["properties"]
    assert "io.k8s.api.authorization.v1.SelfSubjectAccessReviewList" not in built.definitions


def test_an_alias_may_have_parts_of_its_own():
    stored_as = native("Every", "everies", Every, group="example.com")
    first = stored(stored_as, "v1")
    alias = msgspec.structs.replace(first, group="other.com", converter=IDENTITY)
    parts = {
        ("other.com/v1", "Every"): schemas.object_parts_of(native("Every", "everies", Asked, at_root=True))
    }
    built = Schemas(Registry([first, alias]), parts=parts)
    assert "verb" in built.of(alias)["properties"]
    assert "spec" in built.of(first)["properties"]


def examples(kind: Kind) -> list[Json]:
    """The specs on a kind's page."""
    texts = re.findall(r"^```yaml\n(.*?)^```$", kind.doc, re.DOTALL | re.MULTILINE)
    plain = [yaml.safe_load(text) for text in texts]
    outer = ("type", "name", "mesh", "labels")
    return [
        kind.clean(
            {key: value for key, value in each.items() if key not in outer} if kind.inline else each["spec"]
        )
        for each in plain
    ]


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if examples(kind)], ids=lambda kind: kind.name)
@pytest.mark.parametrize("version", ["io.kuma.v1alpha1", "io.koguma.v1"])
def test_the_example_of_a_page_fits_its_schema_and_nonsense_does_not(kind: Kind, version: str):
    root: Mapping[str, Json] = {
        "$ref": f"#/components/schemas/{version}.{kind.name}",
        "components": {"schemas": SCHEMAS.definitions},
    }
    validator = jsonschema_rs.Draft202012Validator(strict_limits(root))
    for spec in examples(kind):
        shown = {"apiVersion": "a/b", "kind": kind.name, "metadata": {"name": "a"}, "spec": spec}
        assert [error.message for error in validator.iter_errors(shown)] == []
        assert not validator.is_valid({**shown, "spec": 3})
        assert not validator.is_valid({**shown, "metadata": {"labels": {"a": 1}}})


def strict_limits(schema: Json) -> Json:
    """The same without the boolean limits of OpenAPI 3.0, which newer JSON schemas write as numbers."""
    if isinstance(schema, dict):
        return {
            key: strict_limits(value)
            for key, value in schema.items()
            if not (key in ("exclusiveMinimum", "exclusiveMaximum") and value is True)
        }
    return [strict_limits(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("version", ["kuma.io/v1alpha1", "koguma.io/v1"])
@pytest.mark.parametrize(
    ("kind", "path", "keys"),
    [
        ("MeshService", "spec.ports", ["port"]),
        ("MeshMultiZoneService", "spec.ports", ["port"]),
        ("Dataplane", "spec.networking.inbound", ["address", "port"]),
        ("Mesh", "spec.mtls.backends", ["name"]),
        ("MeshProxyPatch", "status.conditions", ["type"]),
    ],
)
def test_lists_whose_items_have_keys_say_so(version, kind, path, keys):
    schema = SCHEMAS.definitions[
        f"{'.'.join(reversed(version.split('/')[0].split('.')))}.{version.split('/')[1]}.{kind}"
    ]
    for name in path.split("."):
        field = schema["properties"][name]
        schema = {**SCHEMAS.resolve(field["$ref"]), **field} if "$ref" in field else field
    assert (schema["x-kubernetes-list-type"], schema["x-kubernetes-list-map-keys"]) == ("map", keys)
    item = SCHEMAS.resolve(schema["items"]["$ref"])
    for key in keys:
        assert key in item["properties"], "a key is a field of the items"


def test_keys_that_may_be_left_out_have_a_default():
    inbound = SCHEMAS.definitions["io.kuma.v1alpha1.Dataplane.DataplaneInbound"]["properties"]
    assert inbound["address"]["default"] == ""
    assert "default" not in inbound["port"]
    assert "x-koguma" not in str(SCHEMAS.definitions)
