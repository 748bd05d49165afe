"""ResourceQuota: one count for all endpoints of a set and the plain form, also among concurrent writers."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from koguma.kube.kinds.quota import RESOURCE_QUOTA
from koguma.model.resource import Resource
from koguma.store.contract import Put, Transaction
from tests import custom_resources
from tests.control_plane import LocalControlPlane
from tests.http_client import Response
from tests.kube_client import (
    CORE,
    KOGUMA,
    KUMA,
    TABLE,
    KubeClient,
    accepted,
    causes,
    failure,
    timeout_spec,
)
from tests.waiting import until

pytestmark = pytest.mark.slow

KUMA_KEY, KOGUMA_KEY = "count/meshtimeouts.kuma.io", "count/meshtimeouts.koguma.io"
_NUMBERS = count(1)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def planes(request, tmp_path_factory):
    """Control planes on one store: one on SQLite, two on PostgreSQL."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        with LocalControlPlane(folder / "a", store=f"sqlite:///{folder}/koguma.db") as plane:
            yield (plane, plane)
        return
    store = request.getfixturevalue("postgres").database()
    with (
        LocalControlPlane(folder / "a", store=store) as one,
        LocalControlPlane(folder / "b", store=store) as two,
    ):
        yield (one, two)


@pytest.fixture
def plane(planes):
    return planes[0]


@pytest.fixture
def namespace():
    return f"quota-{next(_NUMBERS)}"


def quotas(plane, namespace) -> KubeClient:
    return KubeClient(plane, namespace, CORE, "ResourceQuota")


def limit_timeouts(plane, namespace, *, kuma="3", koguma=None) -> None:
    hard = {KUMA_KEY: kuma, **({KOGUMA_KEY: koguma} if koguma else {})}
    accepted(quotas(plane, namespace).create("q", spec={"hard": hard}))


def timeouts(plane, namespace, version=KUMA) -> KubeClient:
    return KubeClient(plane, namespace, version, "MeshTimeout")


def create(plane, namespace, name, version=KUMA, **more) -> Response:
    """In the mesh `default`; koguma.io/v1 has the same spec."""
    labels = {"labels": {"kuma.io/mesh": "default"}}
    return timeouts(plane, namespace, version).create(name, metadata=labels, spec=timeout_spec(), **more)


def put(plane, namespace, name, query="") -> Response:
    """Through the plain form."""
    document = {
        "type": "MeshTimeout",
        "mesh": "default",
        "name": f"{name}.{namespace}",
        "labels": {"k8s.kuma.io/namespace": namespace},
        "spec": timeout_spec(),
    }
    return plane("PUT", f"/meshes/default/meshtimeouts/{name}.{namespace}{query}", document)


def used(plane, namespace) -> dict[str, str]:
    return (quotas(plane, namespace).get("q").get("status") or {}).get("used")


def test_one_quota_counts_both_endpoints_and_the_plain_path(plane, namespace):
    limit_timeouts(plane, namespace, kuma="3", koguma="3")
    accepted(create(plane, namespace, "a", KUMA))
    accepted(create(plane, namespace, "b", KOGUMA))
    assert put(plane, namespace, "c").status == 201
    text = (
        f"exceeded quota: q, requested: {KOGUMA_KEY}=1,{KUMA_KEY}=1, used: {KOGUMA_KEY}=3,{KUMA_KEY}=3,"
        f" limited: {KOGUMA_KEY}=3,{KUMA_KEY}=3"
    )
    for version, group in ((KUMA, "kuma.io"), (KOGUMA, "koguma.io")):
        refused = create(plane, namespace, "d", version)
        assert failure(refused) == (403, "Forbidden")
        assert refused.json["message"] == f'meshtimeouts.{group} "d" is forbidden: {text}'
        refused = create(plane, namespace, "d", version, query={"dryRun": "All"})
        assert refused.json["message"] == f'meshtimeouts.{group} "d" is forbidden: {text}'
        refused = timeouts(plane, namespace, version).apply(
            "d", metadata={"labels": {"kuma.io/mesh": "default"}}, spec=timeout_spec()
        )
        assert failure(refused) == (403, "Forbidden")
    for query in ("", "?dryRun=All"):
        refused = put(plane, namespace, "d", query)
        assert (refused.status, refused.json["detail"]) == (403, text)
    until(lambda: used(plane, namespace) == {KUMA_KEY: "3", KOGUMA_KEY: "3"})
    accepted(timeouts(plane, namespace, KOGUMA).patch("a", {"metadata": {"labels": {"x": "y"}}}))
    assert put(plane, namespace, "b").status == 200, "an update takes no more room"


def test_an_apply_of_many_documents_fits_or_writes_none(plane, namespace):
    limit_timeouts(plane, namespace, kuma="2")

    def applied(*names, query=""):
        documents = [
            {
                "apiVersion": KUMA,
                "kind": "MeshTimeout",
                "metadata": {"name": name, "namespace": namespace, "labels": {"kuma.io/mesh": "default"}},
                "spec": timeout_spec(),
            }
            for name in names
        ]
        return plane("POST", f"/_apply{query}", documents)

    refused = applied("a", "b", "c")
    assert refused.status == 403
    assert refused.json["detail"] == (
        f"exceeded quota: q, requested: {KUMA_KEY}=3, used: {KUMA_KEY}=0, limited: {KUMA_KEY}=2"
    )
    assert timeouts(plane, namespace).list().json["items"] == []
    assert applied("a", "b", query="?dryRun=All").status == 200
    assert applied("a", "b").status == 200
    assert applied("a", "b").status == 200


def test_concurrent_creates_never_pass_a_quota(planes, namespace):
    limit_timeouts(planes[0], namespace, kuma="5")

    def write(number: int) -> int:
        plane, name = planes[number % 2], f"t{number}"
        match number % 3:
            case 0:
                return create(plane, namespace, name, KUMA).status
            case 1:
                return create(plane, namespace, name, KOGUMA).status
        return put(plane, namespace, name).status

    until(lambda: quotas(planes[1], namespace).exists("q"))
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(write, range(36)))
    assert sorted(statuses) == [201] * 5 + [403] * 31
    for plane in planes:
        until(lambda plane=plane: len(timeouts(plane, namespace).list().json["items"]) == 5)
        until(lambda plane=plane: used(plane, namespace) == {KUMA_KEY: "5"})


def test_a_place_that_was_given_up_elsewhere_can_be_taken_at_once(planes, namespace):
    one, two = planes
    limit_timeouts(one, namespace, kuma="1")
    accepted(create(one, namespace, "first"))
    for number in range(5):
        previous = "first" if not number else f"t{number - 1}"
        until(lambda previous=previous: timeouts(two, namespace).exists(previous))
        assert timeouts(one, namespace).delete(previous).status == 200
        accepted(create(two, namespace, f"t{number}"))
        assert create(one, namespace, "more").status == 403


def test_the_status_stays_true_and_a_limit_may_go_below_what_is_used(plane, namespace):
    limit_timeouts(plane, namespace, kuma="2")
    accepted(create(plane, namespace, "a"))
    accepted(create(plane, namespace, "b"))
    until(lambda: used(plane, namespace) == {KUMA_KEY: "2"})
    accepted(quotas(plane, namespace).patch("q", {"spec": {"hard": {KUMA_KEY: "1"}}}))
    until(lambda: quotas(plane, namespace).get("q")["status"]["hard"] == {KUMA_KEY: "1"})
    assert used(plane, namespace) == {KUMA_KEY: "2"}
    timeouts(plane, namespace).delete("a")
    until(lambda: used(plane, namespace) == {KUMA_KEY: "1"})
    assert create(plane, namespace, "c").status == 403
    quotas(plane, namespace).delete("q")
    accepted(create(plane, namespace, "c"))


def test_objects_without_a_namespace_count_in_that_of_their_mesh(plane):
    assert plane("PUT", "/meshes/small", {"type": "Mesh", "name": "small"}).status == 201
    until(lambda: KubeClient(plane, "", CORE, "Namespace").exists("mesh-small"))
    until(lambda: timeouts(plane, "mesh-small").list().json["items"])
    stored = len(timeouts(plane, "mesh-small").list().json["items"])
    limit_timeouts(plane, "mesh-small", kuma=str(stored + 1))
    document = {"type": "MeshTimeout", "mesh": "small", "name": "a", "spec": timeout_spec()}
    assert plane("PUT", "/meshes/small/meshtimeouts/a", document).status == 201
    refused = plane("PUT", "/meshes/small/meshtimeouts/b", {**document, "name": "b"})
    assert (refused.status, "exceeded quota: q" in refused.json["detail"]) == (403, True)
    assert plane("DELETE", "/meshes/small").status == 200


def test_old_spellings_and_quotas_themselves_are_counted(plane, namespace):
    leases = "count/leases.coordination.k8s.io"
    spec = {"hard": {"secrets": 1, "count/secrets": "1k", leases: "0", "resourcequotas": "1"}}
    stored = accepted(quotas(plane, namespace).create("q", spec=spec))
    assert stored["spec"]["hard"] == {**spec["hard"], "secrets": "1", "count/secrets": "1000"}
    secrets = KubeClient(plane, namespace, CORE, "Secret")
    accepted(secrets.create("a"))
    assert "requested: secrets=1, used: secrets=1, limited: secrets=1" in secrets.create("b").json["message"]
    assert KubeClient(plane, namespace, "coordination.k8s.io/v1", "Lease").create("l").status == 403
    assert "requested: resourcequotas=1" in quotas(plane, namespace).create("other").json["message"]
    expected = {"secrets": "1", "count/secrets": "1", leases: "0", "resourcequotas": "1"}
    until(lambda: used(plane, namespace) == expected)
    table = quotas(plane, namespace).list(TABLE).json
    assert table["rows"][0]["cells"][1] == (
        f"{leases}: 0/0, count/secrets: 1/1000, resourcequotas: 1/1, secrets: 1/1"
    )


def test_a_key_that_names_nothing_warns_at_once_and_in_the_status(plane, namespace):
    hard = {"count/meshtimeout.kuma.io": "1", "cpu": "500m", "count/meshes.kuma.io": "1", KUMA_KEY: "1"}
    answer = quotas(plane, namespace).create("q", spec={"hard": hard})
    accepted(answer)
    assert len(answer.warnings) == 3
    assert any('did you mean "count/meshtimeouts.kuma.io"' in text for text in answer.warnings)
    until(lambda: used(plane, namespace) == {KUMA_KEY: "0"})
    (condition,) = quotas(plane, namespace).get("q")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Counted", "False")
    assert "count/meshes.kuma.io" in condition["message"]
    fixed = quotas(plane, namespace).patch(
        "q", {"spec": {"hard": {key: None for key in hard if key != KUMA_KEY}}}
    )
    assert (accepted(fixed), fixed.warnings)[1] == []
    until(lambda: quotas(plane, namespace).get("q")["status"]["conditions"][0]["status"] == "True")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"hard": {"whatever": "1"}}, "spec.hard[whatever]"),
        ({"hard": {"count/configmaps": "many"}}, "spec.hard[count/configmaps]"),
        ({"hard": {"count/configmaps": "-1"}}, "spec.hard[count/configmaps]"),
        ({"hard": {"count/configmaps": "1.5"}}, "spec.hard[count/configmaps]"),
        ({"hard": {"a/b/c": "1"}}, "spec.hard[a/b/c]"),
        ({"hard": {"count/configmaps": "1"}, "scopes": ["BestEffort"]}, "spec.scopes"),
    ],
)
def test_a_wrong_quota_is_refused(plane, namespace, spec, field):
    refused = quotas(plane, namespace).create("q", spec=spec)
    assert failure(refused) == (422, "Invalid")
    assert causes(refused)[0][0] == field


def test_the_control_plane_itself_is_counted_and_not_refused(plane):
    """Services that are generated from a Dataplane come although the quota is full."""
    assert plane("PUT", "/meshes/gen", {"type": "Mesh", "name": "gen"}).status == 201
    until(lambda: KubeClient(plane, "", CORE, "Namespace").exists("mesh-gen"))
    key = "count/meshservices.kuma.io"
    accepted(quotas(plane, "mesh-gen").create("q", spec={"hard": {key: "0"}}))
    inbound = {"port": 80, "tags": {"kuma.io/service": "web"}}
    dataplane = {
        "type": "Dataplane",
        "mesh": "gen",
        "name": "web-1",
        "networking": {"address": "192.0.2.1", "inbound": [inbound]},
    }
    assert plane("PUT", "/meshes/gen/dataplanes/web-1", dataplane).status == 201
    until(lambda: used(plane, "mesh-gen") == {key: "1"})
    service = {"type": "MeshService", "mesh": "gen", "name": "own", "spec": {"ports": [{"port": 80}]}}
    assert "exceeded quota" in plane("PUT", "/meshes/gen/meshservices/own", service).json["detail"]


def test_a_custom_resource_can_be_limited_before_it_exists(plane, namespace):
    group = f"{namespace}.example.com"
    key = f"count/widgets.{group}"
    assert quotas(plane, namespace).create("q", spec={"hard": {key: "1"}}).warnings
    until(lambda: used(plane, namespace) == {})
    widgets = custom_resources.defined(
        plane,
        custom_resources.version(),
        custom_resources.version("v2", storage=False),
        group=group,
        namespace=namespace,
    )
    until(lambda: used(plane, namespace) == {key: "0"}, "the status follows the definition")
    accepted(widgets.create("a", spec={"size": 1}))
    for served in (widgets, widgets.other(version=f"{group}/v2")):
        assert f"requested: {key}=1, used: {key}=1" in served.create("b", spec={"size": 1}).json["message"]
    until(lambda: used(plane, namespace) == {key: "1"})


@pytest.mark.parametrize("spec", [None, 5, {"hard": 5}, {"hard": {KUMA_KEY: 5}}, {"hard": {KUMA_KEY: "x"}}])
def test_a_quota_that_nobody_checked_limits_nothing(plane, namespace, spec):
    where = {"namespace": namespace, "name": "q", "core_name": f"q.{namespace}"}
    broken = Resource(kind=RESOURCE_QUOTA.stored_as, **where, spec=spec, status={"conditions": 5})
    plane.run(plane.plane.store.write(Transaction((Put(broken),), "test")))
    assert put(plane, namespace, "a").status == 201
    until(lambda: used(plane, namespace) == {}, "the status is written all the same")
    assert quotas(plane, namespace).delete("q").status == 200


def test_very_large_limits_stay_what_they_are(plane, namespace):
    stored = accepted(quotas(plane, namespace).create("q", spec={"hard": {KUMA_KEY: "1e300"}}))
    assert stored["spec"]["hard"] == {KUMA_KEY: str(2**63 - 1)}
    accepted(quotas(plane, namespace).patch("q", {"metadata": {"labels": {"a": "b"}}}))
    assert put(plane, namespace, "a").status == 201
