"""Every object under `legal/` may be written as it stands: the folder is the test list."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kinds_check import BY_NAME, spec_of

from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import ValidationContext

DOCUMENTS = [
    document
    for path in sorted((Path(__file__).parent / "legal").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: f"{d['type']}-{d['name']}")
def test_it_may_be_written(document: dict[str, Any]) -> None:
    kind = BY_NAME[document["type"]]
    context = ValidationContext(
        control_plane=ControlPlaneInfo(), name=document["name"], mesh=document.get("mesh", "")
    )
    assert list(kind.violations(spec_of(kind, document), context)) == []


def test_every_kind_with_much_to_say_is_shown() -> None:
    quiet = {"Config", "GlobalSecret", "Secret", "Workload", "Zone"}
    assert {document["type"] for document in DOCUMENTS} >= {kind.name for kind in KINDS} - quiet
