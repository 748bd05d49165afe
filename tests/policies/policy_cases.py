"""Cases of policies: `cases/<policy>/<what>.yaml`, each document in a file one case. The glob is the list.

`validation` and `seeds` (examples of the founding documents) have a spec and what is `refused` and `warned`;
a case without either is accepted silently. Instead of a whole `spec` a case may give:

- `here`: what stands at the word HERE of the `frame` that is the first document of the file;
- `rule`, `match` or `filters`: one rule of a route to the service backend;
- `conf`: the conf of one entry of `to`, whose target is `to` or the service backend.

`spellings` have a spec and how it is `read`; `overlay` says what a conf changes in a proxy's Envoy resources.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext
from tests import build

FOLDER = Path(__file__).parent / "cases"
BACKEND = build.service_ref("backend")

Case = dict[str, Any]


def cases(*files: str) -> tuple[Any, ...]:
    """The policies and cases of all files with these names, as parameters of a test."""
    return tuple(_cases(files))


def _cases(files: tuple[str, ...]) -> Iterator[Any]:
    for path in sorted(path for name in files for path in FOLDER.glob(f"*/{name}.yaml")):
        policy, frame = path.parent.name, None
        for document in yaml.safe_load_all(path.read_text()):
            if "frame" in document:
                frame = document["frame"]
                continue
            case = {**document, "spec": _framed(frame, document["here"])} if "here" in document else document
            yield pytest.param(policy, case, id=f"{policy}: {case['case']}")


def kind_of(policy: str) -> Kind:
    """The kind that a module of `koguma.policies` defines."""
    return import_module(f"koguma.policies.{policy}").KIND


def spec_of(kind: Kind, case: Case) -> Any:
    """The spec of a case, from the shorthand that it uses."""
    if "rule" in case and kind.name == "MeshGatewayHTTPRoute":
        return {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [case["rule"]]}
    if "rule" in case:
        return _route(case["rule"])
    if "match" in case:
        return _route({"matches": [case["match"]], "default": {}})
    if "filters" in case:
        return _route(build.http_rule(filters=case["filters"]))
    if "conf" in case:
        return {"to": [{"targetRef": case.get("to", BACKEND), "default": case["conf"]}]}
    return case["spec"]


def violations(kind: Kind, case: Case) -> list[tuple[str, str]]:
    """What is wrong with a case's spec: fields and messages."""
    return [(found.field, found.message) for found in kind.violations(spec_of(kind, case), _context(case))]


def warnings(kind: Kind, case: Case) -> list[str]:
    """What is legal in a case's spec and probably a mistake."""
    return list(kind.warn(kind.read(kind.clean(spec_of(kind, case))), _context(case)))


def _context(case: Case) -> ValidationContext:
    allowed = case.get("allowProxyDataSources", False)
    return ValidationContext(
        control_plane=ControlPlaneInfo(allow_proxy_data_sources=allowed),
        name="a-policy",
        mesh="default",
        namespace=case.get("namespace", ""),
    )


def _route(rule: Any) -> Any:
    return build.http_route("a-policy", rule)["spec"]


def _framed(frame: Any, here: Any) -> Any:
    """The frame with HERE replaced."""
    match frame:
        case "HERE":
            return here
        case dict():
            return {name: _framed(value, here) for name, value in frame.items()}
        case list():
            return [_framed(value, here) for value in frame]
        case _:
            return frame
