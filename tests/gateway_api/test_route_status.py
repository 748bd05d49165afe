"""Statuses of routes as a control plane writes them: every reason, and only what has changed."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.control_plane import LocalControlPlane
from tests.kube_client import KubeClient, accepted
from tests.waiting import eventually, until

V1 = "gateway.networking.k8s.io/v1"
OURS = "koguma.io/gateway-controller"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalControlPlane]:
    with LocalControlPlane(tmp_path_factory.mktemp("x")) as started:
        for namespace in ("shop", "other"):
            accepted(KubeClient(started, "", "v1", "Namespace").create(namespace))
        for written in (
            build.mesh_service("backend", labels={"k8s.kuma.io/namespace": "shop"}),
            build.mesh_service("streams", build.port(80, "tcp"), labels={"k8s.kuma.io/namespace": "shop"}),
        ):
            path = f"/meshes/default/meshservices/{written['name']}.shop"
            assert started("PUT", path, {**written, "name": f"{written['name']}.shop"}).status in (200, 201)
        classes = KubeClient(started, "", V1, "GatewayClass")
        if not classes.exists("koguma"):
            accepted(classes.create("koguma", spec={"controllerName": OURS}))
        listeners = [
            {"name": "http", "port": 8080, "protocol": "HTTP", "hostname": "*.shop.test"},
            {"name": "tcp", "port": 9000, "protocol": "TCP"},
        ]
        gateways = KubeClient(started, "shop", V1, "Gateway")
        accepted(gateways.create("edge", spec={"gatewayClassName": "koguma", "listeners": listeners}))
        yield started


@pytest.fixture
def routes(plane: LocalControlPlane) -> KubeClient:
    return KubeClient(plane, "shop", V1, "HTTPRoute")


def write(routes: KubeClient, name: str, rules: Any = None, parent: Any = None, **spec: Any) -> None:
    ref = {"name": "edge", **(parent or {})}
    backend = [{"name": "backend", "port": 80}]
    written = {"parentRefs": [ref], "rules": rules or [{"backendRefs": backend}], **spec}
    accepted(routes.create(name, spec=written))


def said(routes: KubeClient, name: str) -> Any:
    """The conditions of a route at its only parent, by type: the status and the reason."""
    parents = (routes.get(name).get("status") or {}).get("parents") or [{}]
    return {each["type"]: (each["status"], each["reason"]) for each in parents[0].get("conditions") or ()}


ACCEPTED = {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}
TABLE: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str]]]] = {
    "good": ({}, {}),
    "no-listener": ({"parent": {"sectionName": "none"}}, {"Accepted": ("False", "NoMatchingParent")}),
    "no-hostname": ({"hostnames": ["x.test"]}, {"Accepted": ("False", "NoMatchingListenerHostname")}),
    "wrong-kind": ({"parent": {"sectionName": "tcp"}}, {"Accepted": ("False", "NotAllowedByListeners")}),
    "no-backend": (
        {"rules": [{"backendRefs": [{"name": "nobody", "port": 80}]}]},
        {"ResolvedRefs": ("False", "BackendNotFound")},
    ),
    "unknown-kind": (
        {"rules": [{"backendRefs": [{"group": "x.test", "kind": "Odd", "name": "a", "port": 80}]}]},
        {"ResolvedRefs": ("False", "InvalidKind")},
    ),
    "cross-namespace": (
        {"rules": [{"backendRefs": [{"name": "backend", "namespace": "other", "port": 80}]}]},
        {"ResolvedRefs": ("False", "RefNotPermitted")},
    ),
    "wrong-protocol": (
        {"rules": [{"backendRefs": [{"name": "streams", "port": 80}]}]},
        {"ResolvedRefs": ("False", "UnsupportedProtocol")},
    ),
}
HOST = {
    "type": "RequestHeaderModifier",
    "requestHeaderModifier": {"set": [{"name": "host", "value": "a"}]},
}
BACKEND = [{"name": "backend", "port": 80}]


def test_every_reason_is_written(routes: KubeClient) -> None:
    for name, (fields, _) in TABLE.items():
        write(routes, name, **fields)
    for name, (_, expected) in TABLE.items():
        eventually(lambda name=name: said(routes, name), {**ACCEPTED, **expected})
        routes.delete(name)


def test_rules_that_cannot_be_had_are_named(routes: KubeClient) -> None:
    bad, good = {"filters": [HOST], "backendRefs": BACKEND}, {"backendRefs": BACKEND}
    write(routes, "none-left", [bad])
    eventually(lambda: said(routes, "none-left"), {**ACCEPTED, "Accepted": ("False", "UnsupportedValue")})
    write(routes, "partial", [bad, good])
    eventually(
        lambda: said(routes, "partial"), {**ACCEPTED, "PartiallyInvalid": ("True", "UnsupportedValue")}
    )
    (parent,) = routes.get("partial")["status"]["parents"]
    message = parent["conditions"][2]["message"]
    assert message.startswith("Dropped Rule 0: spec.rules[0].filters[0].requestHeaderModifier.set[0].name: ")


def test_a_filter_of_ours_that_comes_resolves_the_reference(
    plane: LocalControlPlane, routes: KubeClient
) -> None:
    filters = KubeClient(plane, "shop", "kuma.io/v1alpha1", "RouteFilter")
    ref = {"group": "kuma.io", "kind": "RouteFilter", "name": "down"}
    rewrite = {"type": "URLRewrite", "urlRewrite": {"hostname": "a.test"}}
    named = {"type": "ExtensionRef", "extensionRef": ref}
    write(routes, "extended", [{"filters": [named], "backendRefs": BACKEND}])
    missing = {**ACCEPTED, "ResolvedRefs": ("False", "BackendNotFound")}
    eventually(lambda: said(routes, "extended"), missing)
    answer = {"type": "DirectResponse", "directResponse": {"status": 503}}
    accepted(filters.create("down", spec=answer))
    eventually(lambda: said(routes, "extended"), ACCEPTED)
    accepted(
        routes.patch("extended", {"spec": {"rules": [{"filters": [named, rewrite], "backendRefs": BACKEND}]}})
    )
    eventually(lambda: said(routes, "extended"), {**ACCEPTED, "Accepted": ("False", "IncompatibleFilters")})
    accepted(routes.patch("extended", {"spec": {"rules": [{"filters": [named], "backendRefs": BACKEND}]}}))
    filters.delete("down")
    eventually(lambda: said(routes, "extended"), missing)


def test_a_new_generation_is_observed_and_times_stay(routes: KubeClient) -> None:
    write(routes, "observed")
    eventually(lambda: said(routes, "observed"), ACCEPTED)
    (before,) = routes.get("observed")["status"]["parents"]
    assert [each["observedGeneration"] for each in before["conditions"]] == [1, 1]
    accepted(routes.patch("observed", {"spec": {"hostnames": ["a.shop.test"]}}))
    (after,) = until(
        lambda: [
            each
            for each in routes.get("observed")["status"]["parents"]
            if each["conditions"][0]["observedGeneration"] == 2
        ]
    )
    times = [[each["lastTransitionTime"] for each in entry["conditions"]] for entry in (before, after)]
    assert times[0] == times[1]


def test_a_grant_that_comes_resolves_the_reference(plane: LocalControlPlane, routes: KubeClient) -> None:
    name = "backend.other"
    service = build.mesh_service(name, labels={"k8s.kuma.io/namespace": "other"})
    assert plane("PUT", f"/meshes/default/meshservices/{name}", service).status in (200, 201)
    write(routes, "granted", **TABLE["cross-namespace"][0])
    refused = {**ACCEPTED, "ResolvedRefs": ("False", "RefNotPermitted")}
    eventually(lambda: said(routes, "granted"), refused)
    grants = KubeClient(plane, "other", "gateway.networking.k8s.io/v1beta1", "ReferenceGrant")
    who = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop"}
    accepted(grants.create("it", spec={"from": [who], "to": [{"group": "", "kind": "Service"}]}))
    eventually(lambda: said(routes, "granted"), ACCEPTED)
    grants.delete("it")
    eventually(lambda: said(routes, "granted"), refused)


def test_entries_of_others_stay_and_ours_go_with_the_parent(routes: KubeClient) -> None:
    write(routes, "shared")
    eventually(lambda: said(routes, "shared"), ACCEPTED)
    other = {"parentRef": {"name": "theirs"}, "controllerName": "x.test/other", "conditions": []}
    document = routes.get("shared")
    document["status"]["parents"].append(other)
    accepted(routes.replace(document, part="status"))
    accepted(routes.patch("shared", {"spec": {"parentRefs": [{"name": "gone"}]}}))
    eventually(
        lambda: [each["controllerName"] for each in routes.get("shared")["status"]["parents"]],
        ["x.test/other"],
    )


def test_a_status_that_is_true_is_not_written_again(plane: LocalControlPlane, routes: KubeClient) -> None:
    write(routes, "quiet")
    eventually(lambda: said(routes, "quiet"), ACCEPTED)
    version = routes.get("quiet")["metadata"]["resourceVersion"]
    write(routes, "later")  # what comes after it shows that the writer has been here
    eventually(lambda: said(routes, "later"), ACCEPTED)
    assert routes.get("quiet")["metadata"]["resourceVersion"] == version


def test_routes_of_services_have_a_status_too(routes: KubeClient) -> None:
    service = {"group": "", "kind": "Service"}
    write(routes, "mesh", parent={**service, "name": "backend"})
    eventually(lambda: said(routes, "mesh"), ACCEPTED)
    write(routes, "mesh-none", parent={**service, "name": "nobody"})
    expected = {**ACCEPTED, "Accepted": ("False", "NoMatchingParent")}
    eventually(lambda: said(routes, "mesh-none"), expected)
