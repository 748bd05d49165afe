"""The server is tested by its own description: schemathesis reads the OpenAPI and tries to break it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from koguma.main import all_kinds
from tests.control_plane import LocalControlPlane

# A path of each shape; `make soak` tries all of them.
PATHS = (
    "/",
    "/config",
    "/policies",
    "/_resources",
    "/_kri/{kri}",
    "/_apply",
    "/meshes",
    "/meshes/{name}",
    "/zones/{name}",
    "/globalsecrets/{name}",
    "/meshtimeouts",
    "/meshes/{mesh}/meshtimeouts",
    "/meshes/{mesh}/meshtimeouts/{name}",
    "/meshes/{mesh}/dataplanes/{name}",
    "/meshes/{mesh}/dataplane-insights/{name}",
    "/meshes/{mesh}/dataplanes/{name}/_rules",
    "/meshes/{mesh}/dataplanes/{name}/_outbounds/{kri}/_routes",
)


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("described"), localhost_is_admin=False) as plane:
        plane.token = (plane.data_dir / "admin-token").read_text()
        plane.description = plane("GET", "/openapi.json", Authorization=f"Bearer {plane.token}").json
        yield plane


def test_every_kind_is_described(described):
    paths = described.description["paths"]
    for kind in all_kinds():
        item = f"/meshes/{{mesh}}/{kind.path}/{{name}}" if kind.is_mesh_scoped else f"/{kind.path}/{{name}}"
        assert set(paths[item]) >= ({"get"} if kind.read_only else {"get", "put", "patch", "delete"})
        assert kind.name in described.description["components"]["schemas"]


def test_patterns_are_written_for_every_reader_and_not_for_python_alone(described):
    text = json.dumps(described.description)
    assert '"pattern": "^' in text
    assert r"\\Z" not in text


def test_every_reference_leads_somewhere(described):
    text = json.dumps(described.description)
    schemas = described.description["components"]["schemas"]
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.partition('"')[0] in schemas


@pytest.mark.parametrize(
    ("examples", "paths"),
    [pytest.param(8, PATHS, marks=pytest.mark.slow), pytest.param(100, None, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(3600)
def test_nothing_breaks_what_is_promised(described, tmp_path, examples, paths):
    description = json.loads(json.dumps(described.description))
    if paths:
        description["paths"] = {path: description["paths"][path] for path in paths}
    for path in description["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict) and "parameters" in operation:
                # A watch does not end by itself.
                operation["parameters"] = [
                    p for p in operation["parameters"] if p["name"] not in ("watch", "revision")
                ]
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(description))
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        str(file),
        "--url",
        described.address,
        "--header",
        f"Authorization: Bearer {described.token}",
        "--phases",
        "coverage,fuzzing",
        "--max-examples",
        str(examples),
        # A body that fits the schema may still break a rule, such as a name that differs from the URL's.
        # Who shows no token is anonymous, and is refused with 403 as in Kuma, not with 401.
        "--exclude-checks",
        "positive_data_acceptance,missing_required_header",
        "--seed",
        "1",
        "--no-color",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[:12000]
