"""Cases of the policies: each file under `cases` is a policy, each document in it a case.

The first document of a file may hold a `frame`, a spec with the word HERE in it; a case may then write
only what stands `here`. A case without `refused` is accepted, one without `warned` passes silently.
"""

from importlib import import_module
from pathlib import Path

import pytest
import yaml

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import About, Kind

FOLDER = Path(__file__).parent / "cases"


def framed(frame, here):
    """The frame with HERE replaced."""
    match frame:
        case "HERE":
            return here
        case dict():
            return {name: framed(value, here) for name, value in frame.items()}
        case list():
            return [framed(value, here) for value in frame]
        case _:
            return frame


def cases():
    for path in sorted(FOLDER.glob("*.yaml")):
        kind = import_module(f"koguma.policies.{path.stem}").KIND
        frame = None
        for document in yaml.safe_load_all(path.read_text()):
            if "frame" in document:
                frame = document["frame"]
                continue
            spec = document["spec"] if "spec" in document else framed(frame, document["here"])
            yield pytest.param(kind, spec, document, id=f"{path.stem}: {document['case']}")


CASES = tuple(cases())
ACCEPTED = tuple(case for case in CASES if not case.values[2].get("refused"))


def about(document) -> About:
    return About(
        control_plane=ControlPlaneInfo(), name="it", mesh="default", namespace=document.get("namespace", "")
    )


@pytest.mark.parametrize(("kind", "spec", "document"), CASES)
def test_a_policy_is_judged_as_its_case_says(kind: Kind, spec, document) -> None:
    found = [f"{v.field}: {v.message}" for v in kind.violations(spec, about(document))]
    assert found == document.get("refused", [])
    assert set(document) <= {"case", "spec", "here", "namespace", "refused", "warned"}


@pytest.mark.parametrize(("kind", "spec", "document"), ACCEPTED)
def test_a_policy_is_warned_about_as_its_case_says(kind: Kind, spec, document) -> None:
    told = list(kind.warn(kind.read(kind.clean(spec)), about(document)))
    assert told == document.get("warned", [])
