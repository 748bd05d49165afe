"""Check: the one place where these tests call the kinds; the cases are data."""

from typing import Any

import yaml

from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext

BY_NAME = {kind.name: kind for kind in KINDS}
_META = ("type", "name", "mesh", "labels")

Expected = list[tuple[str, str]]


def spec_of(kind: Kind, document: dict[str, Any]) -> Any:
    """The spec of an object in the plain form."""
    if kind.inline:
        return {name: value for name, value in document.items() if name not in _META}
    return document["spec"]


def violations(kind: str, spec: str, name: str = "x", stored: str = "") -> Expected:
    """Field and message of all that is wrong with a spec, which is written in YAML."""
    context = ValidationContext(
        control_plane=ControlPlaneInfo(),
        name=name,
        mesh="default",
        stored=yaml.safe_load(stored) if stored else None,
    )
    return [(v.field, v.message) for v in BY_NAME[kind].violations(yaml.safe_load(spec), context)]


def warnings(kind: str, spec: str) -> list[str]:
    """What the writer of a spec is told although it is legal."""
    record = BY_NAME[kind]
    context = ValidationContext(control_plane=ControlPlaneInfo(), name="x", mesh="default")
    return list(record.warn(record.read(yaml.safe_load(spec)), context))
