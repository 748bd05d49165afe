"""The guide to gateways: what it shows can be written, and what it replaces is refused with the way out."""

import re
from pathlib import Path

import pytest

from koguma.core import admission
from koguma.main import all_kinds
from koguma.model import documents, forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import KogumaError

GUIDE = Path(__file__).parents[1] / "docs" / "gateways.md"
KINDS = all_kinds()


def shown() -> list[dict]:
    """The objects that the guide shows, in its blocks and in what its commands read."""
    text = GUIDE.read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"<<YAML\n(.*?)^YAML$", text, re.DOTALL | re.MULTILINE)
    every = [each.value for block in blocks for each in documents.load(block)]
    return [each for each in every if "type" in each or "kind" in each]


def test_what_the_guide_shows_can_be_written():
    objects = [each for each in shown() if each.get("type") != "MeshGatewayRoute"]
    admitted = [
        admission.admitted(forms.read(each, KINDS), None, ControlPlaneInfo()).resource for each in objects
    ]
    assert {"MeshGateway", "MeshHTTPRoute"} <= {each.kind for each in admitted}


def test_what_the_guide_replaces_is_refused_with_its_successor():
    (old,) = [each for each in shown() if each.get("type") == "MeshGatewayRoute"]
    with pytest.raises(KogumaError, match="MeshHTTPRoute or MeshTCPRoute"):
        forms.read(old, KINDS)
