"""JSON paths as kubectl writes them."""

import pytest

from koguma.kube import jsonpath

DOCUMENT = {
    "metadata": {"annotations": {"a.b/c": "dotted"}, "labels": {"my-label": "dashed"}},
    "spec": {"list": [1, 2, 3], "ports": [{"name": "http", "port": 80}, {"name": "admin", "port": 9}]},
    "status": {"conditions": [{"type": "Synced", "status": "No"}, {"type": "Ready", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".spec.list[0]", 1),
        ("spec.list[-1]", 3),
        ("$.spec.list[1]", 2),
        (".spec['list'][2]", 3),
        (".spec.ports[*].name", "http"),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        (".spec.ports[?(@.port<10)].name", "admin"),
        (r".metadata.annotations.a\.b/c", "dotted"),
        (".metadata.labels.my-label", "dashed"),
        ("..port", 80),
        (".spec.nothing", None),
        (".spec.list.nothing", None),
    ],
)
def test_a_path_finds_its_value(path, value):
    assert jsonpath.first(DOCUMENT, path) == value


@pytest.mark.parametrize("path", ["{.spec}", ".spec[", ".spec[?(", ".a b", "x" * 2000])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match=r"\w"):
        jsonpath.compiled(path)


def test_simple_paths_go_down_by_names():
    assert jsonpath.is_simple(".spec.replicas")
    assert not any(jsonpath.is_simple(path) for path in ("", "spec", ".spec[0]", ".a.*", ".spec..a"))
