"""Custom resources with the real kubectl: from the definition to its end."""

import json
import re
from pathlib import Path

import pytest

from tests.custom_resources import SCALE, definition_spec, version

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[2] / "docs" / "custom-resources.md"

COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.phase", "priority": 1},
]


def definition(group, *versions):
    spec = definition_spec(
        *versions, group=group, names={"shortNames": [f"w{group[:2]}"], "categories": ["every"]}
    )
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**head, "metadata": {"name": f"widgets.{group}"}, "spec": spec}


def widget(group, name, **spec):
    return {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def test_a_custom_resource_from_its_definition_to_its_end(kube):
    group = f"{kube.namespace}.example.com"
    kind = f"widgets.{group}"
    whole = version(subresources={"status": {}, "scale": SCALE}, additionalPrinterColumns=COLUMNS)
    kube.applied(definition(group, whole))
    kube("wait", "--for=condition=Established", f"crd/{kind}", "--timeout=10s")
    assert kind in kube("get", "crd", kind)
    # Discovery and explanations follow at once.
    assert f"{group}/v1" in kube("api-versions")
    assert "integer" in kube("explain", "widgets.spec.size", "--api-version", f"{group}/v1")
    assert "widgets" in kube("api-resources", "--api-group", group, "-o", "name")
    # Apply, both ways; columns, scale, patches, diff, describe, edit.
    kube.applied(widget(group, "a", size=5))
    assert [line.split() for line in kube("get", kind).splitlines()] == [["NAME", "SIZE"], ["a", "5"]]
    kube.applied(widget(group, "a", size=6))
    assert kube("get", kind, "a", "-o", "jsonpath={.spec.size} {.spec.color}") == "6 red"
    kube.applied(widget(group, "a", size=6, tags=["x"]), "--server-side", "--force-conflicts")
    kube("scale", kind, "a", "--replicas=3")
    kube("patch", kind, "a", "--type=merge", "-p", '{"spec":{"color":"green"}}')
    kube("edit", kind, "a", editor="sed -i 's/size: 6/size: 8/'")
    spec = kube.get(kind, "a")["spec"]
    assert spec == {"size": 8, "color": "green", "replicas": 3, "tags": ["x"]}
    changed = json.dumps(widget(group, "a", size=7))
    assert kube.run("diff", "-f", "-", stdin=changed).code == 1
    assert "Spec:" in kube("describe", kind, "a")
    refused = kube.refused("apply", "-f", "-", stdin=json.dumps(widget(group, "b", size=0)))
    assert "spec.size in body should be greater than or equal to 1" in refused
    assert "colour" in kube.refused(
        "create", "-f", "-", stdin=json.dumps(widget(group, "b", size=1, colour="red"))
    )
    # A new version, then the end.
    kube.applied(definition(group, {**whole, "storage": False}, version("v2")))
    shown = kube.get(f"widgets.v2.{group}", "a")
    assert (shown["apiVersion"], shown["spec"]) == (f"{group}/v2", spec)
    with kube.runs("get", kind, "-w", "--output-watch-events") as watch:
        watch.wait_for_output("a")
        kube("delete", "crd", kind, "--timeout=20s")
        watch.wait_for_output("DELETED")
    assert "the server doesn't have a resource type" in kube.refused("get", kind)


def test_the_definition_of_the_guide(kube):
    """It is for everybody and not only for a namespace, so that it goes again at the end."""
    text = re.search(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)[1]
    kube("apply", "-f", "-", stdin=text)
    try:
        kube.applied(widget("example.com", "small", size=5, replicas=2))
        assert kube.get("wd", "small")["spec"] == {"size": 5, "replicas": 2, "color": "red"}
        found = kube("get", "wd", "--field-selector", "spec.color=red", "-o", "name")
        assert found == "widget.example.com/small"
        refused = kube.refused("patch", "wd", "small", "--type=merge", "-p", '{"spec":{"size":100}}')
        assert "large widgets have one replica" in refused
    finally:
        kube("delete", "crd", "widgets.example.com")
