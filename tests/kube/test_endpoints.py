"""Endpoints: what is served where, by which words, and over which objects."""

import hashlib

import pytest

from koguma.kinds import KINDS
from koguma.kube import endpoints, v1_conversion
from koguma.kube.registry import ALL_VERBS, COMPUTED_VERBS, READ_VERBS, Registry
from koguma.model.kind import Kinds
from koguma.policies import POLICIES

REGISTRY = Registry(
    (*endpoints.native(), *endpoints.ours(Kinds((*KINDS, *POLICIES)), v1_conversion.converter))
)
RBAC = "rbac.authorization.k8s.io"
REVIEWS = {
    "authentication.k8s.io": ("selfsubjectreviews", "tokenreviews"),
    "authorization.k8s.io": (
        "localsubjectaccessreviews",
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "subjectaccessreviews",
    ),
}


def at(group: str, version: str, plural: str):
    found = REGISTRY.find(group, version, plural)
    assert found is not None, plural
    return found


# group, plural, in namespaces, short name, hash of the stored version as a kube-apiserver shows it
NATIVE = (
    ("", "namespaces", False, ("ns",), "Q3oi5N2YM8M="),
    ("", "configmaps", True, ("cm",), "qFsyl6wFWjQ="),
    ("", "secrets", True, (), "S6u1pOWzb84="),
    ("", "serviceaccounts", True, ("sa",), "pbx9ZvyFpBE="),
    ("", "events", True, ("ev",), "r2yiGXH7wu8="),
    ("events.k8s.io", "events", True, ("ev",), "r2yiGXH7wu8="),
    ("coordination.k8s.io", "leases", True, (), "gqkMMb/YqFM="),
    (RBAC, "roles", True, (), "7FuwZcIIItM="),
    (RBAC, "rolebindings", True, (), "eGsCzGH6b1g="),
    (RBAC, "clusterroles", False, (), "bYE5ZWDrJ44="),
    (RBAC, "clusterrolebindings", False, (), "48tpQ8gZHFc="),
)


@pytest.mark.parametrize(("group", "plural", "namespaced", "short", "version_hash"), NATIVE)
def test_kubernetes_own_kinds_are_where_clients_look_for_them(
    group: str,
    plural: str,
    namespaced: bool,  # noqa: FBT001 - a value of the case
    short: tuple[str, ...],
    version_hash: str,
):
    endpoint = at(group, "v1", plural)
    assert (endpoint.namespaced, endpoint.short_names, endpoint.strategic) == (namespaced, short, True)
    assert endpoint.set.version_hash == version_hash
    assert endpoint.set.id == hashlib.sha256(f"/registry/{plural}".encode()).hexdigest()


def test_namespaces_are_finalized_and_not_deleted_together():
    namespaces = at("", "v1", "namespaces")
    assert namespaces.subresources == ("status", "finalize")
    assert "deletecollection" not in namespaces.verbs
    assert {*namespaces.verbs, "deletecollection"} == set(ALL_VERBS)


def test_both_groups_of_events_are_over_the_same_objects():
    core, newer = at("", "v1", "events"), at("events.k8s.io", "v1", "events")
    assert core.set == newer.set
    assert REGISTRY.over(core.set) == (core, newer)
    assert newer.conversion.from_storage({"message": "m"}) == {"note": "m"}
    assert core.conversion.from_storage({"message": "m"}) == {"message": "m"}


@pytest.mark.parametrize("group", REVIEWS)
def test_reviews_can_only_be_created(group: str):
    found = REGISTRY.at(group, "v1")
    assert tuple(endpoint.plural for endpoint in found) == REVIEWS[group]
    for endpoint in found:
        assert endpoint.verbs == ("create",)
        assert endpoint.set.kind is None
        assert endpoint.set.version_hash == ""
        assert endpoint.set.prefix == f"/registry/{endpoint.plural}"
        assert endpoint.namespaced == (endpoint.kind_name == "LocalSubjectAccessReview")


@pytest.mark.parametrize("kind", [*KINDS, *POLICIES], ids=lambda kind: kind.name)
def test_each_of_our_kinds_is_served_twice_over_one_set(kind):
    plural = kind.plural.replace("-", "")
    kuma, koguma = at("kuma.io", "v1alpha1", plural), at("koguma.io", "v1", plural)
    assert kuma.set == koguma.set
    assert kuma.set.prefix == f"/registry/kuma.io/{kind.plural}"
    assert kuma.converter is None
    assert koguma.converter is not None
    assert kuma.short_names == ((kind.short,) if kind.short else ())
    assert koguma.short_names == ()  # a word that two endpoints have makes kubectl warn
    for endpoint in (kuma, koguma):
        verbs = READ_VERBS if kind.read_only else ALL_VERBS
        assert endpoint.verbs == (verbs if kind.computed is None else COMPUTED_VERBS)
        assert endpoint.subresources == (() if kind.status is None else ("status",))
        word = endpoint.group.removesuffix(".io")  # each its own, or one object would be listed twice
        assert endpoint.categories == ((word, f"{word}-policies") if kind.policy else (word,))
        assert endpoint.namespaced == (kind.namespaced or kind.is_mesh_scoped)
        assert not endpoint.strategic


def test_our_secrets_are_other_objects_than_the_core_groups():
    ours, core = at("kuma.io", "v1alpha1", "secrets"), at("", "v1", "secrets")
    assert ours.set.id != core.set.id
    assert ours.set.stored_as != core.set.stored_as


def test_no_two_kinds_are_stored_under_one_word():
    words = [stored.stored_as for stored in REGISTRY.sets if stored.kind is not None]
    assert len(words) == len(set(words))


def test_no_short_word_means_two_things():
    owners: dict[str, set[str]] = {}
    for endpoint in REGISTRY:
        for word in endpoint.short_names:
            owners.setdefault(word, set()).add(endpoint.set.prefix)
    assert {word: prefixes for word, prefixes in owners.items() if len(prefixes) > 1} == {}
