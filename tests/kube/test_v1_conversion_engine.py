"""The clean shape and the engine: what was read and written back through v1 compiles to the same."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koguma.core import world
from koguma.core.build import snapshot
from koguma.core.incremental import Db
from koguma.kube import v1_conversion
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from tests.core import building, port_confs
from tests.kube.valid_specs import KINDS, specs

pytestmark = pytest.mark.slow

BY_NAME = {kind.name: kind for kind in KINDS}
CORE = Path(building.__file__).parent

MESH = """
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
type: Dataplane
name: web
mesh: default
labels: {team: x}
networking:
  address: 10.0.0.1
  inbound:
    - {port: 8080, name: http, tags: {kuma.io/service: web, kuma.io/protocol: http, version: v1}}
    - {port: 8081, tags: {kuma.io/service: db, kuma.io/protocol: tcp, version: v1}}
  outbound:
    - {port: 9000, backendRef: {kind: MeshService, name: backend, port: 80}}
---
type: MeshService
name: backend
mesh: default
spec:
  selector: {dataplaneTags: {kuma.io/service: web}}
  ports: [{port: 80, targetPort: 8080, appProtocol: http}]
"""


def converted(resource: Resource) -> Resource:
    """The same object, as if somebody had read it through v1 and written it back."""
    kind = BY_NAME[resource.kind]
    both = v1_conversion.converter(kind)
    return msgspec.structs.replace(resource, spec=both.to_storage(both.from_storage(resource.spec)))


def seen(db: Db) -> Any:
    """What all proxies get, to the last byte, and what comes out for whom."""
    found = {}
    for key in building.proxies(db):
        made = port_confs.of_proxy(db, key)
        confs = [(section, [(k, len(cs)) for k, cs in by_kind]) for section, by_kind in made.inbounds]
        pieces, failures = building.bodies(snapshot.of(db, key))
        # A certificate that is missing is named at its place, and places are what differs.
        said = [each.text.replace("tls.verification.", "tls.") for each in failures]
        found[key] = pieces, said, confs
    return found


def compiled(resources: list[Resource]) -> Any:
    return seen(building.database(resources))


def stored(kind: Kind, spec: Any, name: str = "it") -> Resource:
    own = spec if kind.inline else {"spec": spec}
    mesh = {"mesh": "default"} if kind.is_mesh_scoped else {}
    return building.stored({**own, "type": kind.name, "name": name, **mesh})


COMPILED = [
    kind for kind in KINDS if kind.policy or kind.name in ("Dataplane", "Mesh", "MeshExternalService")
]


@pytest.mark.property
@pytest.mark.parametrize("kind", COMPILED, ids=lambda kind: kind.name)
@given(data=st.data())
@settings(max_examples=20)
def test_proxies_get_the_same_to_the_last_byte(kind: Kind, data: st.DataObject):
    """Beside another object of the kind, so that the order between policies counts too."""
    names = ("default",) if kind.name == "Mesh" else ("it", "other")
    ours, *others = (stored(kind, data.draw(specs(kind)), name) for name in names)
    there = [each for each in building.objects(MESH) if each.key != ours.key]
    assert compiled([*there, converted(ours), *others]) == compiled([*there, ours, *others])


OLD = """
type: Dataplane
name: backend-1
mesh: default
networking:
  address: 10.0.0.2
  inbound:
    - {port: 8080, health: {ready: %s}, state: %s, tags: {kuma.io/service: backend, kuma.io/protocol: http}}
---
type: MeshService
name: backend
mesh: default
spec:
  selector: {dataplaneTags: {kuma.io/service: backend}}
  ports: [{port: 80, targetPort: 8080, appProtocol: http}]
---
type: MeshExternalService
name: outside
mesh: default
spec:
  match: {type: HostnameGenerator, port: 80, protocol: http}
  endpoints: [{address: 1.1.1.1, port: 443}]
  tls:
    enabled: true
    version: {min: TLSv1_2, max: TLS13}
    verification:
      subjectAltNames: [a.example.com, {type: Prefix, value: b}]
      caCert: {inlineString: "-----BEGIN CERTIFICATE----- inside -----END CERTIFICATE-----"}
      clientCert: {inlineString: "-----BEGIN CERTIFICATE----- ours -----END CERTIFICATE-----"}
      clientKey: {inlineString: "-----BEGIN PRIVATE KEY----- ours -----END PRIVATE KEY-----"}
    caCert: {%s}
---
type: Dataplane
name: caller
mesh: default
networking:
  address: 10.0.0.1
  outbound:
    - {port: 9000, backendRef: {kind: MeshService, name: backend, port: 80}}
    - {port: 9001, backendRef: {kind: MeshExternalService, name: outside}}
"""
BESIDE = 'inlineString: "-----BEGIN CERTIFICATE----- beside -----END CERTIFICATE-----"'


@pytest.mark.parametrize("beside", ["", BESIDE], ids=["inside", "beside"])
@pytest.mark.parametrize("state", ["null", "Ready", "NotReady"])
@pytest.mark.parametrize("ready", ["true", "false"])
def test_older_fields_of_services_act_as_the_newer_ones(ready: str, state: str, beside: str):
    there = building.objects(OLD % (ready, state, beside))
    through = [converted(each) for each in there]
    assert "TLSv1_2" in repr(there)
    assert "TLSv1_2" not in repr(through)
    assert building.of(building.database(there), "caller").failures == ()
    assert compiled(through) == compiled(there)


# MeshNote and MeshIdea are of other packages: v1 does not serve them here.
CASES = tuple(
    path
    for path in sorted((CORE / "cases").glob("*/*.yaml"))
    if not re.search("MeshNote|MeshIdea", path.read_text())
)


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_case_compiles_to_the_same_through_v1(path: Path):
    case = building.case(path)
    text, *_ = re.split(r"\n-{5,}\n", case.objects)
    there = building.objects(text)
    db = building.database(there) if text != case.objects else case.database()
    expected = seen(db)
    for resource in there:
        db.set(world.RESOURCES, resource.key, converted(resource))
    assert seen(db) == expected
