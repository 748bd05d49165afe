"""BackendTLSPolicies: whose certificates proxies check and how, which policy acts, and what is reported."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import build
import gateway_api_objects as gateway_api
import msgspec
import pytest
from building import database, of, plain, stored

from koguma.core import inspect, pipeline
from koguma.core.gateway_api import backend_tls, backend_tls_status
from koguma.core.incremental import Db
from koguma.envoy.external import SYSTEM_CA
from koguma.model.resource import Key, Resource
from tests.authority import Authority
from tests.envoy import real_envoy
from tests.https_server import HttpsServer
from tests.ports import free_port

CA = Authority().pem[0]
CLUSTER = "kri_msvc_default_east_shop_backend_80"
SERVICE = Key("MeshService", "default", "east", "shop", "backend")


def policy(
    name: str = "tls", created: str = "2026-01-01T00:00:00Z", section: str = "", **more: Any
) -> Resource:
    target = {
        "group": "",
        "kind": "Service",
        "name": "backend",
        **({"sectionName": section} if section else {}),
    }
    validation = {"hostname": "backend.example", **more}
    if "wellKnownCACertificates" not in more:
        validation.setdefault("caCertificateRefs", [{"group": "", "kind": "ConfigMap", "name": "ca"}])
    spec = {"targetRefs": [target], "validation": validation}
    return gateway_api.stored(backend_tls.KIND, name, spec, creation_time=created)


def config_map(text: str = CA, name: str = "ca") -> Resource:
    return gateway_api.stored("ConfigMap.core", name, {"data": {"ca.crt": text}})


def mesh(*resources: Resource, protocol: str = "http", **fields: Any) -> Db:
    """A mesh with mTLS, and a sidecar that calls the service `backend`."""
    called = {"kind": "MeshService", "labels": {"kuma.io/display-name": "backend"}, "port": 80}
    web = build.dataplane("web", outbound=[{"address": "127.0.0.1", "port": 23080, "backendRef": called}])
    service = build.mesh_service("backend", build.port(80, protocol, **fields))
    in_shop = {**service, "labels": {"k8s.kuma.io/namespace": "shop"}}
    return database((stored(build.mesh(mtls=build.builtin_mtls())), stored(web), stored(in_shop), *resources))


def cluster(db: Db, name: str = CLUSTER) -> Any:
    return plain(of(db, "web"))["cluster"][name]


def context(db: Db) -> Any:
    return cluster(db)["transport_socket"]["typed_config"]


def conditions(db: Db, name: str = "tls") -> Mapping[str, tuple[bool, str]]:
    found = backend_tls.conditions(db, Key(backend_tls.KIND, "", "", "shop", name))
    assert all(each.message for each in found)
    return {each.type: (each.is_true, each.reason) for each in found}


GOOD = {"Accepted": (True, "Accepted"), "ResolvedRefs": (True, "ResolvedRefs")}


def test_a_service_has_its_own_certificate_and_not_the_mesh() -> None:
    db = mesh(policy(), config_map())
    tls = context(db)
    assert tls["sni"] == "backend.example"
    validation = tls["common_tls_context"]["validation_context"]
    assert validation["match_typed_subject_alt_names"] == [
        {"san_type": "DNS", "matcher": {"exact": "backend.example"}}
    ]
    assert validation["trusted_ca"]["inline_string"].strip() == CA.strip()
    assert "tls_certificate_sds_secret_configs" not in tls["common_tls_context"]
    assert conditions(db) == GOOD


def test_a_policy_comes_and_goes_with_every_change() -> None:
    db = mesh(config_map())
    before = cluster(db)
    assert "combined_validation_context" in context(db)["common_tls_context"]
    pipeline.take(db, [policy()])
    assert context(db)["sni"] == "backend.example"
    pipeline.take(db, [config_map("no certificate")])
    assert "transport_socket" not in cluster(db)
    pipeline.take(db, [], [policy().key])
    assert cluster(db) == before


def test_other_names_come_instead_of_the_host_name() -> None:
    names = [{"type": "Hostname", "hostname": "a.example"}, {"type": "URI", "uri": "spiffe://x/y"}]
    tls = context(mesh(policy(subjectAltNames=names), config_map()))
    assert tls["sni"] == "backend.example"
    assert tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"] == [
        {"san_type": "DNS", "matcher": {"exact": "a.example"}},
        {"san_type": "URI", "matcher": {"exact": "spiffe://x/y"}},
    ]


def test_the_status_says_it_for_each_target_and_keeps_what_others_wrote() -> None:
    other = {"ancestorRef": {"name": "x"}, "controllerName": "x.test/one", "conditions": []}
    old = msgspec.structs.replace(policy("old"), generation=3, status={"ancestors": [other]})
    young = msgspec.structs.replace(policy("young", "2026-01-02T00:00:00Z"), generation=1)
    db = mesh(old, young, config_map())

    def entry(resource: Resource, at: str = "now") -> Any:
        ancestors = backend_tls_status.status(db, resource, at)["ancestors"]
        assert all(each["controllerName"] == gateway_api.CONTROLLER for each in ancestors[-1:])
        return ancestors[-1]

    assert backend_tls_status.status(db, old, "now")["ancestors"][0] == other
    first = entry(old)
    assert first["ancestorRef"] == {"group": "", "kind": "Service", "name": "backend"}
    said = {each["type"]: (each["status"], each["reason"]) for each in first["conditions"]}
    assert said == {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}
    assert {each["observedGeneration"] for each in first["conditions"]} == {3}
    conflict = {each["type"]: (each["status"], each["reason"]) for each in entry(young)["conditions"]}
    assert conflict["Accepted"] == ("False", "Conflicted")
    written = msgspec.structs.replace(old, generation=4, status={"ancestors": [other, first]})
    pipeline.take(db, [written, config_map("no certificate")])
    later = {each["type"]: each for each in entry(written, "later")["conditions"]}
    assert later["ResolvedRefs"]["status"] == "False"
    assert later["ResolvedRefs"]["reason"] == "InvalidCACertificateRef"
    assert {each["observedGeneration"] for each in later.values()} == {4}
    assert later["ResolvedRefs"]["lastTransitionTime"] == "later"


def test_the_system_has_well_known_authorities() -> None:
    db = mesh(policy(wellKnownCACertificates="System"))
    assert context(db)["common_tls_context"]["validation_context"]["trusted_ca"] == {"filename": SYSTEM_CA}
    assert conditions(db) == GOOD


@pytest.mark.parametrize(
    ("protocol", "alpn"), [("http", "http/1.1"), ("kubernetes.io/h2c", "h2"), ("grpc", "h2")]
)
def test_the_port_says_which_version_of_http_is_spoken(protocol: str, alpn: str) -> None:
    assert context(mesh(policy(), config_map(), protocol=protocol))["common_tls_context"][
        "alpn_protocols"
    ] == [alpn]


def test_the_older_policy_wins_and_the_younger_is_in_conflict() -> None:
    young = policy("a", "2026-01-02T00:00:00Z", hostname="young.example")
    db = mesh(young, policy("b", "2026-01-01T00:00:00Z", hostname="old.example"), config_map())
    assert context(db)["sni"] == "old.example"
    assert conditions(db, "b") == GOOD
    assert conditions(db, "a")["Accepted"] == (False, "Conflicted")
    same_age = mesh(policy("b", hostname="b.example"), policy("a", hostname="a.example"), config_map())
    assert context(same_age)["sni"] == "a.example"


def test_a_policy_for_the_port_goes_before_one_for_the_service() -> None:
    of_port = policy("port", "2026-01-02T00:00:00Z", section="web", hostname="port.example")
    db = mesh(policy("all", hostname="all.example"), of_port, config_map(), name="web")
    tls = cluster(db, CLUSTER.replace("_80", "_web"))["transport_socket"]["typed_config"]
    assert tls["sni"] == "port.example"
    assert conditions(db, "port") == conditions(db, "all") == GOOD


def test_what_is_not_there_is_reported() -> None:
    missing = mesh(policy(section="nothing"), config_map())
    assert conditions(missing)["Accepted"] == (False, "TargetNotFound")
    assert "combined_validation_context" in context(missing)["common_tls_context"]
    elsewhere = gateway_api.stored(backend_tls.KIND, "tls", policy().spec, "other")
    assert "combined_validation_context" in context(mesh(elsewhere, config_map()))["common_tls_context"]


@pytest.mark.parametrize(
    ("refs", "reason"),
    [
        ([{"group": "", "kind": "ConfigMap", "name": "none"}], "InvalidCACertificateRef"),
        ([{"group": "", "kind": "ConfigMap", "name": "garbage"}], "InvalidCACertificateRef"),
        ([{"group": "", "kind": "Secret", "name": "ca"}], "InvalidKind"),
        ([{"group": "example.com", "kind": "ConfigMap", "name": "ca"}], "InvalidKind"),
    ],
)
def test_without_a_good_authority_calls_fail(refs: Any, reason: str) -> None:
    garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    others = (config_map(), config_map(garbage, "garbage"))
    db = mesh(policy(caCertificateRefs=refs), *others)
    assert "transport_socket" not in cluster(db)
    assert "eds_cluster_config" not in cluster(db)
    assert conditions(db) == {
        "Accepted": (False, "NoValidCACertificate"),
        "ResolvedRefs": (False, reason),
    }
    good = {"group": "", "kind": "ConfigMap", "name": "ca"}
    partly = mesh(policy(caCertificateRefs=[*refs, good]), *others)
    assert context(partly)["sni"] == "backend.example"
    assert conditions(partly) == {"Accepted": (True, "Accepted"), "ResolvedRefs": (False, reason)}


def test_policies_act_on_a_service_that_cannot_be_called_and_people_see_why() -> None:
    to = {"targetRef": {"kind": "Mesh"}, "default": {"connectionTimeout": "3s"}}
    timeout = stored({"type": "MeshTimeout", "mesh": "default", "name": "t", "spec": {"to": [to]}})
    db = mesh(policy(), timeout)
    assert cluster(db)["connect_timeout"] == "3s"
    (warning,) = inspect.layout(db, Key("Dataplane", "default", "east", "", "web"))["warnings"]
    assert "calls to port 80 fail: BackendTLSPolicy" in warning
    assert "there is no ConfigMap shop/ca" in warning


@pytest.mark.parametrize("spec", [None, [], {}, {"targetRefs": 3}, {"targetRefs": [{}], "validation": [1]}])
def test_any_data_is_read(spec: Any) -> None:
    db = mesh(gateway_api.stored(backend_tls.KIND, "tls", spec))
    assert "combined_validation_context" in context(db)["common_tls_context"]
    assert conditions(db)["Accepted"] == (False, "TargetNotFound")


@pytest.fixture(scope="module")
def answers() -> Iterator[Mapping[str, int]]:
    """The status that calls get from a real Envoy, by how the certificate of a real server is checked."""
    with tempfile.TemporaryDirectory() as name, HttpsServer(Path(name), "backend.example") as server:
        own = config_map(server.authority.pem[0])
        policies = {
            "good": (policy(), own),
            "wrong name": (policy(hostname="other.example"), own),
            "another name": (
                policy(subjectAltNames=[{"type": "Hostname", "hostname": "other.example"}]),
                own,
            ),
            "wrong authority": (policy(), config_map()),
            "no authority": (policy(),),
        }
        clusters, listeners, ports = [], [], {}
        for number, (case, resources) in enumerate(policies.items()):
            data = {k: v for k, v in cluster(mesh(*resources)).items() if k != "eds_cluster_config"}
            endpoints = [real_envoy.endpoint(server.port)] if case != "no authority" else []
            clusters.append({**data, **real_envoy.cluster(f"c{number}", *endpoints)})
            ports[case] = free_port()
            route = {"match": {"prefix": "/"}, "route": {"cluster": f"c{number}"}}
            hosts = [{"name": "it", "domains": ["*"], "routes": [route]}]
            manager = real_envoy.hcm({"name": "it", "virtual_hosts": hosts})
            listeners.append(real_envoy.listener(case, ports[case], manager))
        with real_envoy.envoy(listeners, clusters, Path(name)):
            yield {case: real_envoy.call(port, method="POST").status for case, port in ports.items()}


@pytest.mark.slow
def test_a_real_envoy_calls_only_who_has_the_right_certificate(answers: Mapping[str, int]) -> None:
    assert answers == {
        "good": 200,
        "wrong name": 503,
        "another name": 503,
        "wrong authority": 503,
        "no authority": 503,
    }
