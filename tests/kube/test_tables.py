"""Tables: what people see of objects through kubectl, in both versions of our kinds."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from koguma.kinds import KINDS
from koguma.kube import endpoints, tables, times, v1_conversion
from koguma.kube.registry import KubeEndpoint, Registry
from koguma.model.kind import Kinds
from koguma.policies import POLICIES

REGISTRY = Registry(
    (*endpoints.native(), *endpoints.ours(Kinds((*KINDS, *POLICIES)), v1_conversion.converter))
)
NOW = datetime(2026, 11, 15, 9, 22, tzinfo=UTC)
MADE = "2026-11-15T09:21:32Z"
RBAC = "rbac.authorization.k8s.io"
STORED = tuple(endpoint for endpoint in REGISTRY if endpoint.set.kind is not None)


def at(group: str, plural: str, version: str = "v1") -> KubeEndpoint:
    endpoint = REGISTRY.find(group, version, plural)
    assert endpoint is not None, plural
    return endpoint


def kuma(plural: str) -> KubeEndpoint:
    return at("kuma.io", plural, "v1alpha1")


def document(**fields: Any) -> dict[str, Any]:
    metadata = {"name": "it", "creationTimestamp": MADE, "labels": {"kuma.io/mesh": "shop"}}
    return {"apiVersion": "x", "kind": "X", "metadata": metadata, **fields}


def shown(endpoint: KubeEndpoint, row_object: dict[str, Any], *, wide: bool = False) -> dict[str, Any]:
    """The cells of one document by their titles."""
    table = tables.table([row_object], endpoint, NOW)
    titles = [(each["name"], each["priority"]) for each in table["columnDefinitions"]]
    cells = table["rows"][0]["cells"]
    assert len(titles) == len(cells)
    return {name: cell for (name, low), cell in zip(titles, cells, strict=True) if wide or not low}


AGES = (
    ("0s", 0),
    ("28s", 28),
    ("119s", 119),
    ("2m", 120),
    ("3m4s", 184),
    ("10m", 600),
    ("179m", 179 * 60 + 59),
    ("3h", 3 * 3600),
    ("7h59m", 8 * 3600 - 1),
    ("47h", 48 * 3600 - 1),
    ("2d", 48 * 3600),
    ("5d3h", (5 * 24 + 3) * 3600 + 59),
    ("8d", 8 * 86400),
    ("729d", 730 * 86400 - 1),
    ("2y", 730 * 86400),
    ("2y3d", 733 * 86400),
    ("8y", 8 * 365 * 86400 + 5),
    ("0s", -1),
    ("<invalid>", -5),
)


@pytest.mark.parametrize(("text", "seconds"), AGES)
def test_ages_are_said_as_kubectl_says_them(text: str, seconds: int):
    assert times.age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == text


@pytest.mark.parametrize("odd", [None, "", "yesterday", 5, "2026-13-01T00:00:00Z", "2026-11-15T09:22:00"])
def test_a_time_that_is_none_has_an_unknown_age(odd: Any):
    assert times.age(odd, NOW) == "<unknown>"
    assert times.to_seconds(odd) == times.to_microseconds(odd) == odd


NATIVE: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("", "namespaces", {"status": {"phase": "Active"}}, {"Status": "Active", "Age": "28s"}),
    ("", "configmaps", {"data": {"a": "", "b": ""}, "binaryData": {"c": ""}}, {"Data": 3, "Age": "28s"}),
    ("", "configmaps", {}, {"Data": 0, "Age": "28s"}),
    ("", "secrets", {"type": "Opaque", "data": {"a": ""}}, {"Type": "Opaque", "Data": 1, "Age": "28s"}),
    ("", "serviceaccounts", {"secrets": [{"name": "s"}]}, {"Secrets": 1, "Age": "28s"}),
    ("coordination.k8s.io", "leases", {"spec": {"holderIdentity": "me"}}, {"Holder": "me", "Age": "28s"}),
    ("coordination.k8s.io", "leases", {"spec": None}, {"Holder": "", "Age": "28s"}),
    (RBAC, "roles", {"rules": []}, {"Created At": MADE}),
    (RBAC, "clusterroles", {}, {"Created At": MADE}),
    (
        RBAC,
        "rolebindings",
        {"roleRef": {"kind": "ClusterRole", "name": "edit"}},
        {"Role": "ClusterRole/edit", "Age": "28s"},
    ),
)


@pytest.mark.parametrize(("group", "plural", "fields", "cells"), NATIVE)
def test_kubernetes_own_kinds_have_their_columns(
    group: str, plural: str, fields: dict[str, Any], cells: dict[str, Any]
):
    assert shown(at(group, plural), document(**fields)) == {"Name": "it", **cells}


def test_wide_tables_of_bindings_say_who():
    subjects = [
        {"kind": "User", "name": "ann"},
        {"kind": "User", "name": "bob"},
        {"kind": "Group", "name": "team"},
        {"kind": "ServiceAccount", "name": "bot", "namespace": "shop"},
    ]
    row_object = document(roleRef={"kind": "Role", "name": "edit"}, subjects=subjects)
    cells = shown(at(RBAC, "clusterrolebindings"), row_object, wide=True)
    assert list(cells.items())[3:] == [
        ("Users", "ann, bob"),
        ("Groups", "team"),
        ("ServiceAccounts", "shop/bot"),
    ]


EVENT = {
    "involvedObject": {"kind": "Mesh", "name": "default", "fieldPath": "spec.mtls"},
    "type": "Warning",
    "reason": "Expired",
    "message": " the CA expired \n",
    "source": {"component": "koguma", "host": "cp-1"},
    "firstTimestamp": "2026-11-15T09:12:00Z",
    "lastTimestamp": "2026-11-15T09:17:30Z",
    "count": 4,
}


@pytest.mark.parametrize("group", ["", "events.k8s.io"])
def test_events_tell_what_happened_in_both_groups(group: str):
    endpoint = at(group, "events")
    cells = shown(endpoint, document(**endpoint.conversion.from_storage(EVENT)), wide=True)
    assert cells == {
        "Last Seen": "4m30s",
        "Type": "Warning",
        "Reason": "Expired",
        "Object": "mesh/default",
        "Subobject": "spec.mtls",
        "Source": "koguma, cp-1",
        "Message": "the CA expired",
        "First Seen": "10m",
        "Count": 4,
        "Name": "it",
    }


@pytest.mark.parametrize(
    ("fields", "last", "count"),
    [
        ({"eventTime": "2026-11-15T09:21:00.000000Z"}, "60s", 1),
        ({"series": {"count": 7, "lastObservedTime": "2026-11-15T09:21:50.000000Z"}}, "10s", 7),
        ({}, "<unknown>", 1),
    ],
)
def test_newer_events_are_last_seen_when_they_or_their_series_happened(
    fields: dict[str, Any], last: str, count: int
):
    cells = shown(at("", "events"), document(**fields), wide=True)
    assert (cells["Last Seen"], cells["Count"]) == (last, count)


OURS = """
meshtimeouts:
  - spec: {to: [{targetRef: {kind: Mesh}, default: {connectionTimeout: 2s}}]}
    cells: {Target: Mesh, To: 1, Rules: 0}
  - spec: {targetRef: {kind: Dataplane, labels: {app: web}}, rules: [{default: {idleTimeout: 2s}}]}
    cells: {Target: "Dataplane{app=web}", To: 0, Rules: 1}
meshtrafficpermissions:
  - spec:
      targetRef: {kind: MeshService, name: backend}
      from: [{targetRef: {kind: Mesh}, default: {action: Allow}}]
    cells: {Target: MeshService/backend, Rules: 1}
meshhttproutes:
  - spec:
      targetRef: {kind: Dataplane, name: web, sectionName: http}
      to: [{targetRef: {kind: MeshService, name: b}, rules: []}]
    cells: {Target: "Dataplane/web:http", Destinations: MeshService/b, Rules: 0}
meshgatewayhttproutes:
  - spec: {targetRef: {kind: MeshGateway, name: edge}, rules: [{}, {}]}
    cells: {Target: MeshGateway/edge, Hostnames: "*", Rules: 2}
meshtraces:
  - spec: {default: {backends: [{type: Zipkin, zipkin: {url: "http://z"}}]}}
    cells: {Target: Mesh, Backends: Zipkin}
meshpassthroughs:
  - spec: {default: {passthroughMode: All}}
    cells: {Target: Mesh, Mode: All}
meshproxypatches:
  - spec: {default: {appendModifications: [{}, {}]}}
    cells: {Target: Mesh, Modifications: 2}
meshservices:
  - spec: {ports: [{port: 80, name: http}, {port: 9000}], state: Available}
    status: {vips: [{ip: 240.0.0.1}], dataplaneProxies: {healthy: 1, total: 3}}
    cells: {Ports: "http:80,9000:9000", VIPs: 240.0.0.1, State: Available, Ready: 1/3}
  - spec: {}
    cells: {Ports: "", VIPs: "", State: "", Ready: ""}
meshmultizoneservices:
  - spec: {ports: [{port: 80}]}
    status: {meshServices: [{}, {}]}
    cells: {Ports: "80:80", VIPs: "", Services: 2}
meshexternalservices:
  - spec:
      match: [{type: InternalVIP, value: mongo.ext, port: 27017, protocol: tcp}]
      destination: {type: Regular, endpoints: [{address: 10.0.0.1, port: 1}, {address: "unix:///a"}]}
    status: {vip: {ip: 242.0.0.1}}
    cells: {Match: "mongo.ext:27017", Endpoints: "10.0.0.1:1,unix:///a", VIP: 242.0.0.1}
  - spec:
      match: {type: HostnameGenerator, port: 443, protocol: tcp}
      endpoints: [{address: a.com, port: 443}]
    cells: {Match: "tcp:443", Endpoints: "a.com:443", VIP: ""}
dataplanes:
  - spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, name: http, tags: {kuma.io/service: web}}]}}
    cells: {Address: 10.0.0.1, Services: web, Ready: 1/1}
meshgateways:
  - spec: {conf: {listeners: [{port: 80, protocol: HTTP}]}}
    cells: {Listeners: "HTTP:80"}
meshidentities:
  - spec: {provider: {type: Bundled}}
    cells: {Provider: Bundled}
meshtrusts:
  - spec: {trustDomain: shop.local, caBundles: [{}]}
    cells: {Domain: shop.local, CAs: 1}
meshopentelemetrybackends:
  - spec: {endpoint: {address: otel, port: 4317}}
    cells: {Endpoint: "otel:4317", Protocol: grpc}
meshzoneaddresses:
  - spec: {address: ingress.example.com, port: 443}
    cells: {Address: ingress.example.com, Port: "443"}
workloads:
  - spec: {}
    status: {dataplaneProxies: {healthy: 2, total: 2}}
    cells: {Ready: 2/2}
secrets:
  - spec: {data: AAEC}
    cells: {Size: 3B}
  - spec: {data: "?"}
    cells: {Size: not base64}
dataplaneinsights:
  - spec: {subscriptions: [{connectTime: a, disconnectTime: b}, {connectTime: c}]}
    cells: {Status: Online, Control Plane: "", Sent: "", Refused: ""}
  - spec:
      subscriptions:
        - connectTime: c
          controlPlaneInstanceId: cp-1
          status: {total: {responsesSent: "7", responsesRejected: "2"}}
    cells: {Status: Online, Control Plane: cp-1, Sent: 7, Refused: 2}
  - spec: {}
    cells: {Status: Offline, Control Plane: "", Sent: "", Refused: ""}
serviceinsights:
  - spec: {status: partially_degraded, dataplanes: {total: 3, online: 1}}
    cells: {Status: partially_degraded, Online: 1/3, Type: internal}
  - spec: {status: online, dataplanes: {}, serviceType: gateway_builtin}
    cells: {Status: online, Online: 0/0, Type: gateway_builtin}
"""
CASES = [(plural, case) for plural, cases in yaml.safe_load(OURS).items() for case in cases]


@pytest.mark.parametrize(("plural", "case"), CASES, ids=[plural for plural, _ in CASES])
def test_objects_of_a_mesh_show_what_matters_of_them(plural: str, case: dict[str, Any]):
    row_object = document(spec=case["spec"], status=case.get("status"))
    before = copy.deepcopy(row_object)
    expected = {"Name": "it", "Mesh": "shop", **case["cells"], "Age": "28s"}
    assert shown(kuma(plural), row_object) == expected
    assert list(shown(kuma(plural), row_object)) == list(expected)
    assert row_object == before


@pytest.mark.parametrize(
    ("plural", "spec", "cells"),
    [
        ("meshes", {}, {"mTLS": "off", "MeshServices": "Everywhere"}),
        ("meshes", {"mtls": {"enabledBackend": "ca-1"}}, {"mTLS": "ca-1", "MeshServices": "Everywhere"}),
        (
            "meshinsights",
            {"dataplanes": {"total": 2}, "services": {"total": 1}},
            {"Online": "0/2", "Services": 1},
        ),
        ("zoneinsights", {}, {"Status": "Offline", "Control Plane": ""}),
        ("zones", {"enabled": False}, {"Enabled": "false"}),
        ("zones", {}, {"Enabled": "true"}),
        ("zoneegresses", {"networking": {"address": "10.0.0.9"}}, {"Address": "10.0.0.9"}),
        ("hostnamegenerators", {"template": "{{ .Name }}.mesh"}, {"Template": "{{ .Name }}.mesh"}),
    ],
)
def test_what_is_in_no_mesh_has_no_column_for_it(plural: str, spec: dict[str, Any], cells: dict[str, Any]):
    assert shown(kuma(plural), document(spec=spec)) == {"Name": "it", **cells, "Age": "28s"}


@pytest.mark.parametrize(("plural", "case"), CASES, ids=[plural for plural, _ in CASES])
def test_the_clean_shape_shows_the_same_cells(plural: str, case: dict[str, Any]):
    endpoint = at("koguma.io", plural)
    row_object = document(spec=endpoint.conversion.from_storage(case["spec"]), status=case.get("status"))
    assert shown(endpoint, row_object) == {"Name": "it", "Mesh": "shop", **case["cells"], "Age": "28s"}


def test_wide_tables_of_our_kinds_say_where_they_come_from():
    row_object = document(spec={}, kri="kri_mt_shop___it_")
    row_object["metadata"]["labels"] |= {"kuma.io/zone": "east", "kuma.io/origin": "zone"}
    cells = shown(kuma("meshtimeouts"), row_object, wide=True)
    assert list(cells.items())[-4:] == [
        ("Age", "28s"),
        ("Zone", "east"),
        ("Origin", "zone"),
        ("KRI", "kri_mt_shop___it_"),
    ]


@pytest.mark.parametrize("endpoint", STORED, ids=lambda e: f"{e.api_version}/{e.plural}")
def test_no_shape_of_what_is_stored_breaks_a_table(endpoint: KubeEndpoint):
    odd: tuple[Any, ...] = (None, {}, {"to": 5, "ports": {}, "networking": [], "match": "x", "targetRef": []})
    for value in odd:
        table = tables.table(
            [{"metadata": {"name": "it"}, "spec": value, "status": value, "data": 7}, {}], endpoint, NOW
        )
        assert all(len(row["cells"]) == len(table["columnDefinitions"]) for row in table["rows"])
        assert all(isinstance(cell, (str, int)) for row in table["rows"] for cell in row["cells"])


@pytest.mark.parametrize("endpoint", STORED, ids=lambda e: f"{e.api_version}/{e.plural}")
def test_every_column_has_words_and_one_is_the_name(endpoint: KubeEndpoint):
    definitions = [column.definition for column in tables.columns(endpoint)]
    assert all(each["description"].endswith(".") for each in definitions)
    assert len({each["name"] for each in definitions}) == len(definitions)
    assert [each["name"] for each in definitions if each["format"] == "name"] == ["Name"]


def test_rows_carry_what_was_asked_for():
    row_object, endpoint = document(data={"a": "b"}), at("", "configmaps")
    objects = {
        include: tables.table([row_object], endpoint, NOW, include)["rows"][0]["object"]
        for include in tables.INCLUDES
    }
    assert objects["Object"] == row_object
    assert objects["None"] is None
    assert objects["Metadata"] == tables.partial(row_object)
    assert tables.partial(row_object) == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": row_object["metadata"],
    }


def test_a_table_is_a_list_with_its_own_metadata():
    meta = {"resourceVersion": "41", "continue": "next"}
    table = tables.table([], at("", "secrets"), NOW, "Metadata", meta)
    assert (table["kind"], table["apiVersion"], table["metadata"]) == ("Table", "meta.k8s.io/v1", meta)
    assert table["rows"] == []
    assert table["columnDefinitions"][0] == {
        "name": "Name",
        "type": "string",
        "format": "name",
        "description": "Its name, unique in its namespace.",
        "priority": 0,
    }


def test_later_tables_of_a_watch_do_without_columns():
    table = tables.table([document()], at("", "secrets"), NOW, with_columns=False)
    assert table["columnDefinitions"] is None
    assert table["rows"][0]["cells"][0] == "it"


def test_a_list_without_contents_keeps_its_metadata():
    table = tables.partial_list([document(), document()], {"resourceVersion": "41"})
    assert table["kind"] == "PartialObjectMetadataList"
    assert table["metadata"] == {"resourceVersion": "41"}
    assert [each["kind"] for each in table["items"]] == ["PartialObjectMetadata"] * 2
