"""The kinds as a whole: their pages, their names, their records."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from kinds_check import BY_NAME, spec_of
from msgspec import inspect as shape

from koguma.kinds import KINDS, status
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.kind import Kind, Kinds, Scope, ValidationContext
from koguma.model.schema import Checker, Json, json_schemas

WRITABLE = [kind for kind in KINDS if not kind.read_only]
NAMES = {
    "Mesh": ("meshes", "m"),
    "Dataplane": ("dataplanes", "dp"),
    "DataplaneInsight": ("dataplane-insights", ""),
    "MeshInsight": ("mesh-insights", ""),
    "ServiceInsight": ("service-insights", ""),
    "Zone": ("zones", "z"),
    "ZoneInsight": ("zone-insights", ""),
    "Secret": ("secrets", ""),
    "GlobalSecret": ("globalsecrets", ""),
    "Config": ("configs", ""),
    "HostnameGenerator": ("hostnamegenerators", "hg"),
    "MeshService": ("meshservices", "msvc"),
    "MeshExternalService": ("meshexternalservices", "extsvc"),
    "MeshMultiZoneService": ("meshmultizoneservices", "mzsvc"),
    "MeshIdentity": ("meshidentities", "mid"),
    "MeshTrust": ("meshtrusts", "mtrust"),
    "MeshOpenTelemetryBackend": ("meshopentelemetrybackends", "motb"),
    "MeshZoneAddress": ("meshzoneaddresses", "mza"),
    "Workload": ("workloads", "wl"),
    "MeshGateway": ("meshgateways", "mgw"),
    "ZoneIngress": ("zoneingresses", "zi"),
    "ZoneEgress": ("zoneegresses", "ze"),
    "ZoneIngressInsight": ("zone-ingress-insights", ""),
    "ZoneEgressInsight": ("zoneegressinsights", ""),
}


REPORTED = (status.Condition, status.HostnameAddress, status.Vip, status.DataplaneProxies)


def by_name(kind: Kind) -> str:
    return kind.name


def test_every_kind_has_its_path_and_short_name() -> None:
    assert {kind.name: (kind.plural, kind.short) for kind in KINDS} == NAMES
    assert all(count == 1 for count in Counter(kind.name for kind in KINDS).values())


@pytest.mark.parametrize("kind", WRITABLE, ids=by_name)
def test_the_example_of_every_page_is_valid(kind: Kind) -> None:
    example = re.search(r"```yaml\n(.*?)```", kind.doc, re.DOTALL)
    assert example, f"{kind.name} has no example"
    document = yaml.safe_load(example[1])
    assert document["type"] == kind.name
    assert ("mesh" in document) == kind.is_mesh_scoped
    context = ValidationContext(
        control_plane=ControlPlaneInfo(), name=document["name"], mesh=document.get("mesh", "")
    )
    assert list(kind.violations(spec_of(kind, document), context)) == []
    assert list(kind.warn(kind.read(spec_of(kind, document)), context)) == []


@pytest.mark.parametrize("kind", KINDS, ids=by_name)
def test_every_page_begins_with_a_sentence(kind: Kind) -> None:
    assert kind.doc.split("\n")[0].endswith(".")


def structs(kind: Kind) -> Iterator[shape.StructType]:
    """All types of a kind, the nested ones too."""
    seen: set[type] = set()
    waiting: list[shape.Type] = [shape.type_info(t) for t in (kind.spec, kind.status) if t is not None]
    while waiting:
        match waiting.pop():
            case shape.StructType(cls=cls, fields=fields) as struct if cls not in seen:
                seen.add(cls)
                yield struct
                waiting += [field.type for field in fields]
            case shape.Metadata(type=inner) | shape.VarTupleType(item_type=inner):
                waiting.append(inner)
            case shape.DictType(value_type=inner):
                waiting.append(inner)
            case shape.UnionType(types=types):
                waiting += types
            case _:
                continue


@pytest.mark.parametrize("kind", KINDS, ids=by_name)
def test_every_field_has_words(kind: Kind) -> None:
    silent = [
        f"{struct.cls.__name__}.{name}"
        for struct in structs(kind)
        for name, hint in get_type_hints(struct.cls, include_extras=True).items()
        if not any(described(hint))
    ]
    assert silent == []


def described(hint: Any) -> Iterator[str]:
    """The words on a type, wherever in it they stand."""
    yield from (meta.description for meta in getattr(hint, "__metadata__", ()) if meta.description)
    for part in get_args(hint):
        yield from described(part)


def test_no_two_types_share_a_name_in_openapi() -> None:
    assert [name for name in components() if "." in name] == []


def components() -> dict[str, Json]:
    """The schemas of all types, as OpenAPI shows them."""
    types = {f"{kind.name} {t.__name__}": t for kind in KINDS for t in (kind.spec, kind.status) if t}
    return json_schemas(types, "#/components/schemas/{name}")[1]


@pytest.mark.parametrize("kind", WRITABLE, ids=by_name)
def test_null_means_absent_in_every_optional_field(kind: Kind) -> None:
    for struct in (each for each in structs(kind) if each.cls not in REPORTED):
        nulls = {field.encode_name: None for field in struct.fields if not field.required}
        refused = [v for v in Checker(struct.cls)(nulls) if v.rule != "required"]
        assert refused == [], struct.cls


def test_secrets_are_for_administrators_and_leave_the_history() -> None:
    admin_only = {kind.name for kind in KINDS if kind.admin_only}
    assert admin_only == {"Secret", "GlobalSecret"}
    assert {kind.name for kind in KINDS if kind.short_history} == admin_only


def test_insights_and_settings_are_nobodys_to_write() -> None:
    read_only = {kind.name for kind in KINDS if kind.read_only}
    assert read_only == {kind.name for kind in KINDS if kind.name.endswith("Insight")} | {"Config"}
    assert not any(kind.short for kind in KINDS if kind.read_only)


def test_global_kinds_are_those_that_live_above_meshes() -> None:
    assert {kind.name for kind in KINDS if kind.scope is Scope.GLOBAL} == {
        "Mesh",
        "MeshInsight",
        "Zone",
        "ZoneInsight",
        "GlobalSecret",
        "Config",
        "HostnameGenerator",
        "ZoneIngress",
        "ZoneEgress",
        "ZoneIngressInsight",
        "ZoneEgressInsight",
    }


def test_names_of_meshes_and_secrets_travel_as_they_are() -> None:
    assert {kind.name for kind in KINDS if kind.sync.keeps_name} == {
        "Mesh",
        "Secret",
        "GlobalSecret",
        "Config",
    }


WRITERS = {
    "Mesh": "global",
    "Zone": "global",
    "MeshMultiZoneService": "global",
    "GlobalSecret": "global",
    "Dataplane": "zone",
    "MeshService": "zone",
    "MeshZoneAddress": "zone",
    "Workload": "zone",
    "ZoneIngress": "zone",
    "ZoneEgress": "zone",
    "Secret": "both",
    "HostnameGenerator": "both",
    "MeshExternalService": "both",
    "MeshIdentity": "both",
    "MeshTrust": "both",
    "MeshOpenTelemetryBackend": "both",
    "MeshGateway": "both",
}


@pytest.mark.parametrize(("name", "writer"), WRITERS.items())
def test_a_kind_is_written_where_it_belongs(name: str, writer: str) -> None:
    kind = BY_NAME[name]
    assert kind.read_only_at(ControlPlaneInfo(mode=Mode.GLOBAL, zone="")) == (writer == "zone")
    assert kind.read_only_at(ControlPlaneInfo(federated=True)) == (writer == "global")
    assert not kind.read_only_at(ControlPlaneInfo())


def test_services_reach_other_zones_and_external_ones_do_not() -> None:
    across = {kind.name for kind in KINDS if kind.sync.across_zones}
    assert across == {"MeshService", "MeshZoneAddress", "ZoneIngress"}


def test_a_person_finds_a_kind_by_any_of_its_words() -> None:
    kinds = Kinds(KINDS)
    for word in ("ZoneIngress", "zi", "zone-ingresses", "zoneingresses"):
        assert kinds.word(word).name == "ZoneIngress"
    assert kinds.word("global-secrets").name == "GlobalSecret"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("MeshIdentity", ("Mesh Identity", "Mesh Identities")),
        ("MeshOpenTelemetryBackend", ("Mesh OpenTelemetry Backend", "Mesh OpenTelemetry Backends")),
        ("MeshZoneAddress", ("Mesh Zone Address", "Mesh Zone Addresses")),
        ("Mesh", ("Mesh", "Meshes")),
        ("ZoneIngress", ("Zone Ingress", "Zone Ingresses")),
        ("ZoneEgress", ("Zone Egress", "Zone Egresses")),
        ("MeshMultiZoneService", ("Mesh Multi Zone Service", "Mesh Multi Zone Services")),
    ],
)
def test_people_see_words(name: str, shown: tuple[str, str]) -> None:
    assert BY_NAME[name].display_names == shown
