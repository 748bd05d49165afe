"""The Python client of Kubernetes, as its users know it, over TLS with a token, on both databases.

On PostgreSQL two control planes share one store, and the second client talks to the other one.
"""

import base64
import itertools
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, UnprocessibleEntityError
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from tests.control_plane import LocalControlPlane
from tests.kube_clients.connections import connected, left
from tests.waiting import until

pytestmark = pytest.mark.slow
_numbers = itertools.count(1)
MERGE = "application/merge-patch+json"
SPEC = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}]}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def planes(request, tmp_path_factory):
    """Two control planes over one database; on SQLite, which is one process's own, the same one twice."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        with LocalControlPlane(folder, store=f"sqlite:///{folder / 'koguma.db'}") as plane:
            yield plane, plane
            left(plane)
        return
    server = request.getfixturevalue("postgres")
    url = server.database()
    with (
        LocalControlPlane(folder / "one", store=url) as one,
        LocalControlPlane(folder / "two", store=url) as two,
    ):
        yield one, two
        left(one)
        left(two)
    server.drop(url)


@pytest.fixture(scope="module")
def token(planes):
    return (planes[0].data_dir / "admin-token").read_text().strip()


@pytest.fixture(scope="module")
def api(planes, token):
    with connected(planes[0], token) as connection:
        yield connection


@pytest.fixture(scope="module")
def other_api(planes, token):
    with connected(planes[1], token) as connection:
        yield connection


@pytest.fixture(scope="module")
def dynamic(api, tmp_path_factory):
    return DynamicClient(api, cache_file=str(tmp_path_factory.mktemp("cache") / "discovery.json"))


@pytest.fixture(scope="module")
def timeouts(dynamic):
    return dynamic.resources.get(api_version="kuma.io/v1alpha1", kind="MeshTimeout")


@pytest.fixture(scope="module")
def clean(dynamic):
    return dynamic.resources.get(api_version="koguma.io/v1", kind="MeshTimeout")


@pytest.fixture
def namespace():
    return f"python{next(_numbers)}"


def timeout(name, version="kuma.io/v1alpha1", spec=SPEC, **labels):
    return {
        "apiVersion": version,
        "kind": "MeshTimeout",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def meta(name, **fields):
    return client.V1ObjectMeta(name=name, **fields)


# The dynamic client.


def test_discovery_says_which_endpoints_serve_the_same_objects(dynamic, timeouts, clean):
    ids = {
        (one.group_version, one.kind): one.extra_args["resourceID"]
        for one in dynamic.resources.search()
        if "resourceID" in (one.extra_args or {}) and not one.kind.endswith("List")
    }
    assert timeouts.extra_args["resourceID"] == clean.extra_args["resourceID"]
    assert ids["v1", "Event"] == ids["events.k8s.io/v1", "Event"]
    assert ids["v1", "Secret"] != ids["kuma.io/v1alpha1", "Secret"] == ids["koguma.io/v1", "Secret"]
    sets = {}
    for (version, kind), resource_id in ids.items():
        sets.setdefault(resource_id, set()).add(kind)
        assert version != "koguma.io/v1" or ids["kuma.io/v1alpha1", kind] == resource_id
    shared = [kinds for kinds in sets.values() if len(kinds) > 1]
    assert shared == [{"MeshService", "Service"}]  # which is a view of the same objects


def test_the_server_says_who_it_is(dynamic, api):
    assert dynamic.version["kubernetes"]["gitVersion"].startswith("v1.")
    assert client.VersionApi(api).get_code().git_version == dynamic.version["kubernetes"]["gitVersion"]


def test_an_object_is_made_read_listed_patched_replaced_and_deleted(timeouts, clean, namespace):
    created = timeouts.create(timeout("slow", team="red"), namespace=namespace)
    assert (created.metadata.generation, created.metadata.labels.team) == (1, "red")
    assert clean.get(name="slow", namespace=namespace).metadata.uid == created.metadata.uid
    listed = timeouts.get(namespace=namespace, label_selector="team=red")
    assert [one.metadata.name for one in listed.items] == ["slow"]
    patched = timeouts.patch(
        {"metadata": {"name": "slow", "labels": {"team": None, "size": "big"}}},
        namespace=namespace,
        content_type=MERGE,
    )
    assert (patched.metadata.generation, dict(patched.metadata.labels)["size"]) == (1, "big")
    assert "team" not in dict(patched.metadata.labels)
    changed = patched.to_dict()
    changed["spec"]["to"][0]["default"]["idleTimeout"] = "7s"
    replaced = timeouts.replace(changed, namespace=namespace)
    assert (replaced.metadata.generation, replaced.spec.to[0].default.idleTimeout) == (2, "7s")
    with pytest.raises(ConflictError):
        timeouts.replace(changed, namespace=namespace)
    assert timeouts.delete(name="slow", namespace=namespace).status == "Success"
    with pytest.raises(NotFoundError):
        timeouts.get(name="slow", namespace=namespace)


def test_what_is_wrong_is_named_by_field(timeouts, namespace):
    wrong = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "soon"}}]}
    with pytest.raises(UnprocessibleEntityError) as refused:
        timeouts.create(timeout("wrong", spec=wrong), namespace=namespace)
    assert "spec.to[0].default.idleTimeout" in refused.value.body


def test_appliers_own_what_they_apply_and_conflicts_name_them(timeouts, namespace):
    own = timeout("shared", team="red")
    created = timeouts.server_side_apply(own, namespace=namespace, field_manager="ann")
    managers = {entry.manager: entry.operation for entry in created.metadata.managedFields}
    assert managers == {"ann": "Apply"}
    with pytest.raises(ConflictError) as refused:
        timeouts.server_side_apply(timeout("shared", team="blue"), namespace=namespace, field_manager="bob")
    assert '"ann"' in refused.value.summary()
    taken = timeouts.server_side_apply(
        timeout("shared", team="blue"), namespace=namespace, field_manager="bob", force_conflicts=True
    )
    assert taken.metadata.labels.team == "blue"
    again = timeouts.server_side_apply(
        timeout("shared", team="blue"), namespace=namespace, field_manager="bob", force_conflicts=True
    )
    assert again.metadata.resourceVersion == taken.metadata.resourceVersion


def test_a_dynamic_watch_follows_from_a_list(timeouts, clean, namespace):
    listed = timeouts.get(namespace=namespace)
    timeouts.create(timeout("slow"), namespace=namespace)
    timeouts.patch(
        {"metadata": {"name": "slow", "labels": {"a": "b"}}}, namespace=namespace, content_type=MERGE
    )
    timeouts.delete(name="slow", namespace=namespace)
    follow = {"namespace": namespace, "resource_version": listed.metadata.resourceVersion, "timeout": 10}
    observed = []
    for one in (timeouts, clean):
        with closing(one.watch(**follow)) as stream:
            observed.append(list(itertools.islice(stream, 3)))
    for events in observed:
        assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    revisions = [[event["object"].metadata.resourceVersion for event in events] for events in observed]
    assert revisions[0] == revisions[1]


def test_pages_are_of_one_revision(timeouts, namespace):
    for name in "abc":
        timeouts.create(timeout(name), namespace=namespace)
    first = timeouts.get(namespace=namespace, limit=2)
    timeouts.delete(name="c", namespace=namespace)
    rest = timeouts.get(namespace=namespace, limit=2, _continue=first.metadata["continue"])
    assert [one.metadata.name for one in (*first.items, *rest.items)] == ["a", "b", "c"]
    assert rest.metadata.resourceVersion == first.metadata.resourceVersion


# The typed clients.


def test_config_maps(api, namespace):
    core = client.CoreV1Api(api)
    created = core.create_namespaced_config_map(
        namespace, client.V1ConfigMap(metadata=meta("c"), data={"a": "1"})
    )
    assert created.metadata.namespace == namespace
    patched = core.patch_namespaced_config_map("c", namespace, {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}
    patched.data = {"c": "3"}
    assert core.replace_namespaced_config_map("c", namespace, patched).data == {"c": "3"}
    assert [one.metadata.name for one in core.list_namespaced_config_map(namespace).items] == ["c"]
    core.delete_namespaced_config_map("c", namespace)
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_config_map("c", namespace)
    assert (gone.value.status, gone.value.reason) == (404, "Not Found")


def test_secrets(api, namespace):
    core = client.CoreV1Api(api)
    body = client.V1Secret(metadata=meta("s"), string_data={"word": "sesame"})
    created = core.create_namespaced_secret(namespace, body)
    assert (created.type, base64.b64decode(created.data["word"])) == ("Opaque", b"sesame")
    assert created.string_data is None
    listed = core.list_secret_for_all_namespaces(field_selector=f"metadata.namespace={namespace}").items
    assert [one.metadata.name for one in listed] == ["s"]


def test_namespaces_and_service_accounts(api, namespace):
    core = client.CoreV1Api(api)
    created = core.create_namespace(client.V1Namespace(metadata=meta(namespace)))
    assert (created.status.phase, created.spec.finalizers) == ("Active", ["kubernetes"])
    account = core.create_namespaced_service_account(
        namespace, client.V1ServiceAccount(metadata=meta("robot"))
    )
    assert account.metadata.uid
    with pytest.raises(ApiException) as refused:
        core.create_namespace(client.V1Namespace(metadata=meta(namespace)))
    assert refused.value.status == 409
    observed = core.read_namespace(namespace).metadata.resource_version
    core.delete_namespace(namespace)
    gone = watch.Watch().stream(
        core.list_namespace,
        field_selector=f"metadata.name={namespace}",
        resource_version=observed,
        timeout_seconds=20,
    )
    with closing(gone):
        assert any(event["type"] == "DELETED" for event in gone)
    assert core.list_namespaced_service_account(namespace).items == []


def test_events_are_made_and_found(api, namespace):
    core, newer = client.CoreV1Api(api), client.EventsV1Api(api)
    now = datetime.now(UTC)
    about = client.V1ObjectReference(kind="MeshTimeout", name="slow", namespace=namespace)
    core.create_namespaced_event(
        namespace,
        client.CoreV1Event(
            metadata=meta("e1"),
            involved_object=about,
            reason="Tried",
            message="it was tried",
            type="Normal",
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        ),
    )
    newer.create_namespaced_event(
        namespace,
        client.EventsV1Event(
            metadata=meta("e2"),
            regarding=about,
            reason="Worked",
            note="it worked",
            action="Try",
            type="Normal",
            event_time=now,
            reporting_controller="example.com/robot",
            reporting_instance="robot-1",
        ),
    )
    listed = core.list_namespaced_event(namespace, field_selector="involvedObject.name=slow").items
    assert [(one.metadata.name, one.message) for one in listed] == [
        ("e1", "it was tried"),
        ("e2", "it worked"),
    ]
    newest = newer.list_namespaced_event(namespace, field_selector="reason=Worked").items
    assert [one.note for one in newest] == ["it worked"]
    assert abs(newest[0].event_time - now) < timedelta(milliseconds=1)


def test_roles_and_bindings_give_rights(api, planes, namespace):
    rbac = client.RbacAuthorizationV1Api(api)
    rule = client.V1PolicyRule(api_groups=["kuma.io"], resources=["meshtimeouts"], verbs=["get", "list"])
    rbac.create_namespaced_role(namespace, client.V1Role(metadata=meta("reader"), rules=[rule]))
    reference = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name="reader")
    subject = client.RbacV1Subject(kind="User", name="rita", api_group="rbac.authorization.k8s.io")
    binding = client.V1RoleBinding(metadata=meta("rita"), role_ref=reference, subjects=[subject])
    rbac.create_namespaced_role_binding(namespace, binding)
    assert [one.metadata.name for one in rbac.list_namespaced_role(namespace).items] == ["reader"]

    token_given = planes[0]("POST", "/tokens/user", {"name": "rita", "validFor": "1h"}).body.decode()
    with connected(planes[0], token_given) as hers:
        objects, reviews = client.CustomObjectsApi(hers), client.AuthorizationV1Api(hers)
        listed = objects.list_namespaced_custom_object("kuma.io", "v1alpha1", namespace, "meshtimeouts")
        assert listed["items"] == []
        with pytest.raises(ApiException) as refused:  # the same objects, and no right on this endpoint
            objects.list_namespaced_custom_object("koguma.io", "v1", namespace, "meshtimeouts")
        assert refused.value.status == 403
        for verb, allowed in (("list", True), ("delete", False)):
            asked = client.V1ResourceAttributes(
                group="kuma.io", resource="meshtimeouts", verb=verb, namespace=namespace
            )
            spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked)
            review = reviews.create_self_subject_access_review(client.V1SelfSubjectAccessReview(spec=spec))
            assert review.status.allowed is allowed


def test_tokens_are_reviewed(api, token):
    reviews = client.AuthenticationV1Api(api)
    for token_given, known in ((token, True), ("nonsense", False)):
        spec = client.V1TokenReviewSpec(token=token_given)
        status = reviews.create_token_review(client.V1TokenReview(spec=spec)).status
        assert bool(status.authenticated) is known
        assert bool(status.error) is not known
        if known:
            assert "system:authenticated" in status.user.groups


def test_leases_are_kept_to_the_microsecond(api, namespace):
    leases = client.CoordinationV1Api(api)
    now = datetime.now(UTC)
    spec = client.V1LeaseSpec(holder_identity="ann", lease_duration_seconds=15, renew_time=now)
    leases.create_namespaced_lease(namespace, client.V1Lease(metadata=meta("l"), spec=spec))
    read = leases.read_namespaced_lease("l", namespace)
    assert (read.spec.holder_identity, read.spec.renew_time) == ("ann", now)
    stale = leases.read_namespaced_lease("l", namespace)
    read.spec.holder_identity = "bob"
    leases.replace_namespaced_lease("l", namespace, read)
    with pytest.raises(ApiException) as refused:
        leases.replace_namespaced_lease("l", namespace, stale)
    assert refused.value.status == 409


# Watches, and those who depend on them.


def test_a_watch_goes_on_where_it_stopped(api, namespace):
    core = client.CoreV1Api(api)
    first = core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta("a")))
    watcher = watch.Watch()
    follow = {"resource_version": first.metadata.resource_version, "timeout_seconds": 10}
    core.patch_namespaced_config_map("a", namespace, {"data": {"n": "1"}})
    for event in watcher.stream(core.list_namespaced_config_map, namespace, **follow):
        assert (event["type"], event["object"].data) == ("MODIFIED", {"n": "1"})
        watcher.stop()
    core.delete_namespaced_config_map("a", namespace)
    follow["resource_version"] = watcher.resource_version
    for event in watcher.stream(core.list_namespaced_config_map, namespace, **follow):
        assert (event["type"], event["object"].data) == ("DELETED", {"n": "1"})
        watcher.stop()


def test_a_watch_from_before_history_begins_is_told_so(api, planes, namespace):
    core = client.CoreV1Api(api)
    old = core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta("a")))
    for number in range(3):
        core.patch_namespaced_config_map("a", namespace, {"data": {"n": str(number)}})
    planes[0].run(planes[0].plane.store.compact((), -timedelta(minutes=1)))
    stream = watch.Watch().stream(
        core.list_namespaced_config_map,
        namespace,
        resource_version=old.metadata.resource_version,
        timeout_seconds=10,
    )
    with pytest.raises(ApiException) as gone:
        next(stream)
    assert gone.value.status == 410
    listed = core.list_namespaced_config_map(namespace)
    assert listed.items[0].data == {"n": "2"}


def test_what_one_control_plane_wrote_the_other_shows_from_that_revision_on(api, other_api, namespace):
    created = client.CoreV1Api(api).create_namespaced_config_map(
        namespace, client.V1ConfigMap(metadata=meta("a"))
    )
    there = client.CoreV1Api(other_api)
    newest = created.metadata.resource_version
    listed = there.list_namespaced_config_map(
        namespace, resource_version=newest, resource_version_match="NotOlderThan"
    )
    assert [one.metadata.uid for one in listed.items] == [created.metadata.uid]
    assert int(listed.metadata.resource_version) >= int(newest)


class Candidate(threading.Thread):
    """Runs for a lock; leads until it is told to resign, then ends."""

    def __init__(self, lock, term):
        super().__init__(daemon=True)
        self.leads, self.resigns, self.stopped = (threading.Event() for _ in range(3))
        self._election = LeaderElection(Config(lock, *term, self._lead, self.stopped.set))

    def run(self):
        self._election.run()

    def _lead(self):
        self.leads.set()
        self.resigns.wait(60)
        raise InterruptedError("resigned")


def test_one_candidate_leads_at_a_time(api, other_api, namespace):
    locks = ((LeaseLock, client.CoordinationV1Api), (ConfigMapLock, client.CoreV1Api))
    races = [[], []]
    for race, (kind, door) in zip(races, locks, strict=True):
        for name, connection in (("ann", api), ("bob", other_api)):
            lock = kind("leader", namespace, name)
            lock.api_instance = door(connection)
            race.append(Candidate(lock, (2, 1.5, 1)))
    for ann, bob in races:  # both kinds of locks side by side: what takes time is to wait
        ann.start()
        assert ann.leads.wait(60)
        bob.start()
        while (observed := bob._election.observed_record) is None:
            time.sleep(0.01)
        assert (observed.holder_identity, bob.leads.is_set()) == ("ann", False)
        ann.resigns.set()
    for ann, bob in races:
        assert ann.stopped.wait(60)
        assert bob.leads.wait(60), "what is not renewed is free again"
        held, record = bob._election.election_config.lock.get("leader", namespace)
        assert (held, record.holder_identity) == (True, "bob")
        bob.resigns.set()
    for one in itertools.chain(*races):
        one.join(60)
        assert not one.is_alive()


def at_once(calls):
    """Run all of them in threads that begin together; the answers or errors, in order."""
    answers = [None] * len(calls)
    together = threading.Barrier(len(calls))

    def run(index, call):
        together.wait()
        try:
            answers[index] = call()
        except ApiException as error:
            answers[index] = error.status

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_none_of_sixty_parallel_patches_is_lost(api, other_api, namespace):
    apis = [client.CoreV1Api(each) for each in (api, other_api)]
    apis[0].create_namespaced_config_map(namespace, {"metadata": {"name": "busy"}, "data": {}})
    until(lambda: apis[1].list_namespaced_config_map(namespace).items, "the other control plane has it")

    def patch(number):
        body = {"data": {f"key-{number}": "patched"}}
        return lambda: apis[number % 2].patch_namespaced_config_map("busy", namespace, body)

    assert all(isinstance(each, client.V1ConfigMap) for each in at_once([patch(n) for n in range(60)]))
    for each in apis:  # what one control plane has stored, the other one shows a moment later
        until(lambda each=each: len(each.read_namespaced_config_map("busy", namespace).data) == 60)


def test_none_of_sixty_parallel_applies_is_lost_and_each_owns_its_field(dynamic, namespace):
    config_maps = dynamic.resources.get(api_version="v1", kind="ConfigMap")

    def apply(number):
        body = {"metadata": {"name": "busy"}, "data": {f"key-{number}": "applied"}}
        return lambda: config_maps.server_side_apply(
            {"apiVersion": "v1", "kind": "ConfigMap", **body},
            name="busy",
            namespace=namespace,
            field_manager=f"manager-{number}",
        )

    answers = at_once([apply(number) for number in range(60)])
    assert not [each for each in answers if isinstance(each, int)]
    busy = config_maps.get(name="busy", namespace=namespace)
    assert len(busy.data.to_dict()) == 60
    assert len({entry.manager for entry in busy.metadata.managedFields}) == 60


def test_of_parallel_patches_of_one_revision_one_is_stored(api, namespace):
    core = client.CoreV1Api(api)
    seen = core.create_namespaced_config_map(namespace, {"metadata": {"name": "seen"}, "data": {}})
    version = {"metadata": {"resourceVersion": seen.metadata.resource_version}}

    def patch(number):
        body = {**version, "data": {f"key-{number}": "patched"}}
        return lambda: core.patch_namespaced_config_map("seen", namespace, body)

    answers = at_once([patch(number) for number in range(10)])
    assert answers.count(409) == 9
    assert len(core.read_namespaced_config_map("seen", namespace).data) == 1


def test_a_deleted_namespace_does_not_come_back_by_another_control_plane(api, other_api, namespace):
    core, other_core = client.CoreV1Api(api), client.CoreV1Api(other_api)
    config_map = client.V1ConfigMap(metadata=meta("late"))
    core.create_namespaced_config_map(namespace, config_map)
    core.delete_namespace(namespace)
    for each in (core, other_core):
        until(lambda: namespace not in names(core.list_namespace()) + names(other_core.list_namespace()))
        with pytest.raises(ApiException) as refused:
            each.create_namespaced_config_map(namespace, config_map)
        assert refused.value.status == 404
        assert f'namespaces \\"{namespace}\\" not found' in refused.value.body


def names(found):
    return [each.metadata.name for each in found.items]


# Custom resources.


def test_a_custom_resource_is_defined_and_used(api, other_api, namespace, tmp_path):
    group = f"{namespace}.example.com"
    definitions = client.ApiextensionsV1Api(api)
    schema = client.V1JSONSchemaProps(
        type="object",
        properties={
            "spec": client.V1JSONSchemaProps(
                type="object",
                properties={
                    "size": client.V1JSONSchemaProps(type="integer", minimum=1),
                    "color": client.V1JSONSchemaProps(type="string", default="red"),
                },
            )
        },
    )
    versions = [
        client.V1CustomResourceDefinitionVersion(
            name=name,
            served=True,
            storage=name == "v1",
            schema=client.V1CustomResourceValidation(open_apiv3_schema=schema),
        )
        for name in ("v1", "v1beta1")
    ]
    names = client.V1CustomResourceDefinitionNames(kind="Widget", plural="widgets")
    spec = client.V1CustomResourceDefinitionSpec(
        group=group, names=names, scope="Namespaced", versions=versions
    )
    definition = client.V1CustomResourceDefinition(metadata=meta(f"widgets.{group}"), spec=spec)
    made = definitions.create_custom_resource_definition(definition)
    assert {each.type: each.status for each in made.status.conditions}["Established"] == "True"
    dynamic = DynamicClient(api, cache_file=str(tmp_path / "discovery.json"))
    widgets, older = (
        dynamic.resources.get(api_version=f"{group}/{name}", kind="Widget") for name in ("v1", "v1beta1")
    )
    assert widgets.extra_args["resourceID"] == older.extra_args["resourceID"]
    document = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": 5}}
    created = widgets.create(document, namespace=namespace)
    assert created.spec.color == "red"
    assert older.get(name="a", namespace=namespace).apiVersion == f"{group}/v1beta1"
    with pytest.raises(UnprocessibleEntityError):
        widgets.patch({"spec": {"size": 0}}, name="a", namespace=namespace, content_type=MERGE)
    objects = client.CustomObjectsApi(other_api)
    where = (group, "v1", namespace, "widgets")
    until(lambda: _is_served(objects, where))
    begin = objects.list_namespaced_custom_object(*where)["metadata"]["resourceVersion"]
    widgets.patch({"spec": {"size": 6}}, name="a", namespace=namespace, content_type=MERGE)
    changes = watch.Watch().stream(
        objects.list_namespaced_custom_object, *where, resource_version=begin, timeout_seconds=20
    )
    with closing(changes):
        event = next(changes)
    assert (event["type"], event["object"]["spec"]["size"]) == ("MODIFIED", 6)
    definitions.delete_custom_resource_definition(f"widgets.{group}")
    until(lambda: not _is_served(objects, where))


def _is_served(objects, where):
    try:
        return bool(objects.list_namespaced_custom_object(*where)["items"])
    except ApiException as error:
        if error.status != 404:
            raise
        return False
