"""Discovery: what there is, in two forms that say the same, with one name for each set of objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import discovery
from koguma.kube.registry import IDENTITY, KubeEndpoint, Registry, StorageSet
from koguma.model.schema import Json
from tests.kube.described import CONFIG_MAP, NAMESPACE, REGISTRY, stored

FORMS = discovery.AGGREGATED
PLACES = [(group, version) for group, versions in REGISTRY.groups().items() for version in versions]


def plain(registry: Registry, *, resource_ids: bool = True) -> dict[tuple[str, str, str], Json]:
    """All entries of the plain form, by group, version and name."""
    return {
        (group, version, entry["name"]): entry
        for group, versions in registry.groups().items()
        for version in versions
        for entry in discovery.resources(registry, group, version, resource_ids=resource_ids)["resources"]
    }


def aggregated(
    registry: Registry, form: str, *, resource_ids: bool = True
) -> dict[tuple[str, str, str], Json]:
    """All entries of the aggregated form, parts of objects too, by the same."""
    entries_by_resource = {}
    for core in (True, False):
        shown = discovery.aggregated(registry, form, core=core, resource_ids=resource_ids)
        assert (shown["kind"], shown["apiVersion"]) == (
            "APIGroupDiscoveryList",
            f"apidiscovery.k8s.io/{form}",
        )
        for item in shown["items"]:
            group = item["metadata"].get("name", "")
            assert (group == "") is core
            for version in item["versions"]:
                for entry in version["resources"]:
                    entries_by_resource[group, version["version"], entry["resource"]] = entry
                    for part in entry.get("subresources", ()):
                        name = f"{entry['resource']}/{part['subresource']}"
                        entries_by_resource[group, version["version"], name] = part
    return entries_by_resource


def test_the_core_group_stands_under_api_and_all_others_under_apis_with_our_own_last():
    assert discovery.core_versions(REGISTRY)["versions"] == ["v1"]
    shown = discovery.groups(REGISTRY)["groups"]
    names = [group["name"] for group in shown]
    assert names == ["authorization.k8s.io", "kuma.io", "rbac.authorization.k8s.io", "koguma.io"]
    assert shown[1] == {
        "name": "kuma.io",
        "versions": [{"groupVersion": "kuma.io/v1alpha1", "version": "v1alpha1"}],
        "preferredVersion": {"groupVersion": "kuma.io/v1alpha1", "version": "v1alpha1"},
    }


def test_an_empty_registry_has_no_versions_and_no_groups():
    assert discovery.core_versions(Registry())["versions"] == []
    assert discovery.groups(Registry())["groups"] == []


def test_the_most_mature_version_of_a_group_is_preferred():
    versions = ("v1alpha1", "v1", "v2beta1", "v2", "v10", "v1beta2", "experimental")
    built = [
        KubeEndpoint(
            group="example.com",
            version=version,
            plural="things",
            set=StorageSet("/registry/things", "example.com/v1", "Thing", CONFIG_MAP),
            namespaced=True,
            converter=IDENTITY,
        )
        for version in versions
    ]
    shown = discovery.group(Registry(built), "example.com")
    expected = ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "experimental"]
    assert [each["version"] for each in shown["versions"]] == expected
    assert shown["preferredVersion"]["groupVersion"] == "example.com/v10"
    assert (shown["kind"], shown["name"]) == ("APIGroup", "example.com")


@pytest.mark.parametrize("name", ["", "nobody.io"])
def test_a_group_that_is_not_there_is_none(name):
    assert discovery.group(REGISTRY, name) is None
    assert discovery.resources(REGISTRY, name or "nobody.io", "v1", resource_ids=True) is None


def test_a_resource_says_all_that_clients_ask_for():
    entry = plain(REGISTRY)["kuma.io", "v1alpha1", "meshservices"]
    endpoint = REGISTRY.find("kuma.io", "v1alpha1", "meshservices")
    assert entry == {
        "name": "meshservices",
        "singularName": "meshservice",
        "namespaced": True,
        "kind": "MeshService",
        "verbs": list(endpoint.verbs),
        "shortNames": ["msvc"],
        "storageVersionHash": endpoint.set.version_hash,
        "resourceID": endpoint.set.id,
    }
    core = discovery.resources(REGISTRY, "", "v1", resource_ids=True)
    assert (core["kind"], core["groupVersion"]) == ("APIResourceList", "v1")


def test_a_part_of_an_object_has_no_identity_of_its_own():
    for form in (plain(REGISTRY), *(aggregated(REGISTRY, form) for form in FORMS)):
        parts = {place: entry for place, entry in form.items() if "/" in place[2]}
        assert parts["", "v1", "namespaces/finalize"]["verbs"] == ["update"]
        assert parts["kuma.io", "v1alpha1", "meshservices/status"]["verbs"] == ["get", "patch", "update"]
        assert not any("resourceID" in entry or "storageVersionHash" in entry for entry in parts.values())


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_say_the_same(form):
    first, second = plain(REGISTRY), aggregated(REGISTRY, form)
    assert first.keys() == second.keys()
    for place, entry in first.items():
        other = second[place]
        for word in ("verbs", "shortNames", "categories", "resourceID", "storageVersionHash"):
            assert entry.get(word) == other.get(word)
        assert other["responseKind"] == {"group": place[0], "version": place[1], "kind": entry["kind"]}
        if "/" not in place[2]:
            assert (other["scope"] == "Namespaced") is entry["namespaced"]
            assert other["singularResource"] == entry["singularName"]


def test_the_gate_governs_the_identity_and_nothing_else():
    for on, off in (
        (plain(REGISTRY), plain(REGISTRY, resource_ids=False)),
        (aggregated(REGISTRY, "v2"), aggregated(REGISTRY, "v2", resource_ids=False)),
    ):
        assert all("resourceID" in entry for place, entry in on.items() if "/" not in place[2])
        assert {
            place: {key: value for key, value in entry.items() if key != "resourceID"}
            for place, entry in on.items()
        } == off


def test_what_is_not_stored_has_an_identity_and_no_stored_version():
    entry = plain(REGISTRY)["authorization.k8s.io", "v1", "selfsubjectaccessreviews"]
    assert len(entry["resourceID"]) == 64
    assert "storageVersionHash" not in entry
    assert entry["verbs"] == ["create"]


def test_both_names_of_a_kind_show_one_set_and_one_stored_version():
    shown = plain(REGISTRY)
    words = ("resourceID", "storageVersionHash")
    pairs = [
        (entry, shown["koguma.io", "v1", name])
        for (group, _, name), entry in shown.items()
        if group == "kuma.io" and "/" not in name
    ]
    assert len(pairs) > 30
    assert all(first[word] == second[word] for first, second in pairs for word in words)


def test_the_hash_of_a_stored_version_is_that_of_kubernetes():
    built = StorageSet("/registry/events", "v1", "Event", CONFIG_MAP)
    endpoint = KubeEndpoint(group="", version="v1", plural="events", set=built, namespaced=True)
    assert plain(Registry([endpoint]))["", "v1", "events"]["storageVersionHash"] == "r2yiGXH7wu8="


def test_an_object_without_a_namespace_is_of_the_whole_cluster():
    built = aggregated(Registry([stored(NAMESPACE, "v1")]), "v2")
    assert built["", "v1", "namespaces"]["scope"] == "Cluster"


PREFIXES = st.sampled_from([f"/registry/{name}" for name in ("a", "b", "a/b", "demo.io/a", "aa")])
ENDPOINTS = st.dictionaries(
    st.tuples(st.sampled_from(["", "a.io", "b.io"]), st.sampled_from(["v1", "v2"]), st.sampled_from("abc")),
    PREFIXES,
    max_size=12,
)


@given(ENDPOINTS)
def test_identities_are_equal_exactly_where_the_set_is(entries_by_resource):
    registry = Registry(
        KubeEndpoint(
            group=group,
            version=version,
            plural=plural,
            set=StorageSet(prefix, "s/v1", prefix, CONFIG_MAP),
            namespaced=True,
            converter=IDENTITY,
        )
        for (group, version, plural), prefix in entries_by_resource.items()
    )
    for entries in (plain(registry), *(aggregated(registry, form) for form in FORMS)):
        assert entries.keys() == entries_by_resource.keys()
        by_id = {(entry["resourceID"], entries_by_resource[place]) for place, entry in entries.items()}
        assert (
            len({identity for identity, _ in by_id}) == len(by_id) == len(set(entries_by_resource.values()))
        )
