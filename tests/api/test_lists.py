"""Lists: paging, filters, the next link."""

import pytest

from tests.build import timeout


@pytest.fixture
def three(plane, mesh):
    for name, team in (("a-1", "red"), ("a-2", "blue"), ("b-1", "red")):
        document = timeout(name, mesh, labels={"team": team})
        assert plane("PUT", f"/meshes/{mesh}/meshtimeouts/{name}", document).status == 201
    return mesh


def names(answer):
    return [item["name"] for item in answer.json["items"]]


def test_pages_lead_to_each_other(plane, three):
    first = plane("GET", f"/meshes/{three}/meshtimeouts?size=2&name=")
    assert names(first) == ["a-1", "a-2"]
    assert first.json["total"] == 3
    link = first.json["next"]
    assert link == f"{plane.address}/meshes/{three}/meshtimeouts?name=&offset=2&size=2"
    second = plane("GET", link.removeprefix(plane.address))
    assert names(second) == ["b-1"]
    assert second.json["next"] is None


def test_filters_by_name_and_labels(plane, three):
    base = f"/meshes/{three}/meshtimeouts"
    assert names(plane("GET", f"{base}?name=a-")) == ["a-1", "a-2"]
    assert names(plane("GET", f"{base}?filter[labels.team]=red")) == ["a-1", "b-1"]
    assert names(plane("GET", f"{base}?filter%5Blabels.team%5D=red&name=b")) == ["b-1"]


def test_a_list_of_all_meshes(plane, three):
    found = plane("GET", "/meshtimeouts?name=a-1").json["items"]
    assert three in [item["mesh"] for item in found]


@pytest.mark.parametrize(
    ("query", "detail", "reason"),
    [
        ("size=x", "Invalid page size", "invalid format"),
        ("size=0", "Invalid page size", "must be greater than 0"),
        ("size=2000", "Invalid page size", "invalid page size of 2000. Maximum page size is 1000"),
        ("filter[name]=x", "Resource is not valid", "filters are only supported on labels"),
        ("filter[labels.a][eq]=x", "Resource is not valid", "advanced filters are not supported"),
        ("filter[labels.a=x", "Resource is not valid", "must be filter[labels.<key>]"),
    ],
)
def test_a_wrong_query_is_refused(plane, query, detail, reason):
    answer = plane("GET", f"/meshes/default/meshtimeouts?{query}")
    assert (answer.status, answer.json["title"], answer.json["detail"]) == (
        400,
        "Could not retrieve resources",
        detail,
    )
    assert answer.fields[0][1] == reason


def test_a_revision_without_a_watch_is_a_mistake(plane):
    answer = plane("GET", "/meshes/default/meshtimeouts?revision=5")
    assert (answer.status, answer.json["detail"]) == (400, 'query parameter "revision" goes with watch=true')


def test_a_wrong_offset_is_refused_in_kumas_words(plane):
    answer = plane("GET", "/meshes/default/meshtimeouts?offset=x")
    assert answer.json["detail"] == 'invalid: invalid offset: strconv.Atoi: parsing "x": invalid syntax'
