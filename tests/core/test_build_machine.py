"""What policies do on the machines of proxies: only what whoever started the proxy allows is built."""

from typing import Any

import pytest
from building import KINDS, at, database, encoder, objects, of, plain, proxy

from koguma.core import admission, pipeline
from koguma.core.build import encoding, network
from koguma.core.build.network import NodeMetadata
from koguma.dp import bootstrap
from koguma.model import documents, forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Invalid
from koguma.model.overlay import MachineAccess

ALLOWING = ControlPlaneInfo(zone="east", allow_proxy_data_sources=True)
PIPE = "feature-access-log-pipe"
DATA = "feature-proxy-data-sources"
OWN = NodeMetadata((PIPE,), log_directories=network.LOG_DIRECTORIES)
GIVING = NodeMetadata((DATA, PIPE), log_directories=network.LOG_DIRECTORIES)
KUMAS = NodeMetadata(("feature-tcp-accesslog-via-named-pipe",), workdir="/run/it")
OUTBOUND = "kri_msvc_default_east__backend_http"
LOGS = "filter_chains[0].filters[0].typed_config.access_log[*].typed_config.path"

MESH = """
type: Mesh
name: default
---
type: MeshService
mesh: default
name: backend
spec:
  selector: {dataplaneTags: {kuma.io/service: backend}}
  ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]
---
type: Dataplane
mesh: default
name: web-1
networking:
  address: 10.0.0.1
  inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
  outbound: [{port: 10001, backendRef: {kind: MeshService, name: backend, port: 80}}]
"""
LOG = """
---
type: MeshAccessLog
mesh: default
name: all
spec: {%s: [{%sdefault: {backends: [{type: File, file: {path: %s, format: {type: Plain, plain: "%s"}}}]}}]}
"""
HEALTH = """
---
type: MeshHealthCheck
mesh: default
name: all
spec: {to: [{targetRef: {kind: Mesh}, default: {http: {path: /}, eventLogPath: %s}}]}
"""
ROUTE = """
---
type: MeshHTTPRoute
mesh: default
name: answers
spec:
  to:
  - targetRef: {kind: MeshService, name: backend}
    rules:
    - matches: [{path: {type: PathPrefix, value: /}}]
      default:
        filters: [{type: DirectResponse, directResponse: {status: 200, body: {%s}}}]
"""


def to(path: str, line: str = "a line") -> str:
    return LOG % ("to", "targetRef: {kind: Mesh}, ", path, line)


def arriving(path: str, line: str = "a line") -> str:
    return LOG % ("rules", "", path, line)


def mesh(policy: str, node: NodeMetadata, control_plane: ControlPlaneInfo = ALLOWING) -> Any:
    """A mesh with a policy that was stored when everything was allowed, and a proxy that said this."""
    drafts = [forms.read(document.value, KINDS) for document in documents.load(MESH + policy)]
    stored = [admission.admitted(draft, None, ALLOWING).resource for draft in drafts]
    db = pipeline.load(KINDS, control_plane, stored)
    db.set(encoding.ENCODER, "envoy", encoder())
    db.set(network.NODE_METADATA, proxy(db, "web-1"), node)
    return db


def built(db: Any) -> tuple[str, list[str]]:
    found = of(db, "web-1")
    return str(plain(found)), [failure.text for failure in found.failures]


POLICIES = {"to": to, "rules": arriving, "health": lambda path: HEALTH % path}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "path",
    ["/etc/cron.d/x", "/tmp/a.log", "/var/log/koguma/../../../etc/x", "/var/log/koguma-other/x", "/var/log"],
)
def test_a_file_that_the_proxy_does_not_allow_is_not_written_and_shown(policy: str, path: str) -> None:
    text, failures = built(mesh(POLICIES[policy](path), OWN))
    assert path not in text
    assert any(f'"{path}" is not written' in each and "--access-log-dir" in each for each in failures)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("path", ["/var/log/koguma/a.log", "/var/log/koguma/team/a.log", "/dev/stdout"])
def test_a_file_that_the_proxy_allows_is_written(policy: str, path: str) -> None:
    text, failures = built(mesh(POLICIES[policy](path), OWN))
    assert path in text
    assert failures == []


def test_other_directories_are_the_proxys_to_choose_and_kumas_agent_has_none() -> None:
    chosen = NodeMetadata((PIPE,), log_directories=("/srv/logs",))
    assert "/srv/logs/a" in built(mesh(to("/srv/logs/a"), chosen))[0]
    assert "/var/log/koguma/a" not in built(mesh(to("/var/log/koguma/a"), chosen))[0]
    assert built(mesh(to("/srv/logs/a"), NodeMetadata((PIPE,), log_directories=())))[1] != []
    assert "/srv/logs/a" in built(mesh(to("/srv/logs/a"), KUMAS))[0]


COALESCED = '{"operators": ["PROTOCOL", {"command": "ENVIRONMENT", "param": "SECRET"}]}'
ENVIRONMENT = (
    "%ENVIRONMENT(SECRET)%",
    "a %ENVIRONMENT(SECRET):3% b",
    f"%COALESCE({COALESCED})%".replace('"', '\\"'),
)


@pytest.mark.parametrize("line", ENVIRONMENT)
def test_the_environment_is_given_away_only_where_control_plane_and_proxy_allow_it(line: str) -> None:
    for policy in (to("/dev/stdout", line), arriving("/dev/stdout", line)):
        assert "SECRET" in built(mesh(policy, GIVING))[0]
        assert "SECRET" in built(mesh(policy, KUMAS))[0]
        for node, control_plane in (
            (OWN, ALLOWING),
            (GIVING, ControlPlaneInfo(zone="east")),
            (KUMAS, ControlPlaneInfo(zone="east")),
        ):
            text, failures = built(mesh(policy, node, control_plane))
            assert "SECRET" not in text
            assert any("--allow-proxy-data-sources" in each for each in failures)


@pytest.mark.parametrize("line", ENVIRONMENT)
@pytest.mark.parametrize("policy", [to, arriving])
def test_a_format_with_the_environment_is_refused_unless_the_control_plane_allows_it(
    policy: Any, line: str
) -> None:
    (document,) = documents.load(policy("/dev/stdout", line).removeprefix("\n---\n"))
    draft = forms.read(document.value, KINDS)
    admission.admitted(draft, None, ALLOWING)
    with pytest.raises(Invalid) as refused:
        admission.admitted(draft, None, ControlPlaneInfo(zone="east"))
    (violation,) = refused.value.violations
    assert violation.field.endswith(".default.backends[0].file.format.plain")
    assert "does not let policies read a proxy's files or environment" in violation.message


WORD = "'%%ENVIRONMENT(X)%%'"
KEYED = "[{key: a, value: " + WORD + "}]"
BACKENDS = (
    "{type: Tcp, tcp: {address: 'a:1', format: {type: Json, json: " + KEYED + "}}}",
    "{type: OpenTelemetry, openTelemetry: {endpoint: 'a:1', body: {arrayValue: {values: [" + WORD + "]}}}}",
    "{type: OpenTelemetry, openTelemetry: {endpoint: 'a:1', attributes: " + KEYED + "}}",
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_asked_about_the_environment(backend: str) -> None:
    text = LOG.replace('{type: File, file: {path: %s, format: {type: Plain, plain: "%s"}}}', backend)
    (document,) = documents.load((text % ("rules", "")).removeprefix("\n---\n"))
    with pytest.raises(Invalid) as refused:
        admission.admitted(forms.read(document.value, KINDS), None, ControlPlaneInfo(zone="east"))
    assert [violation.rule for violation in refused.value.violations] == ["forbidden"]


@pytest.mark.parametrize("body", ["filename: /etc/shadow", "environmentVariable: SECRET"])
def test_an_answer_out_of_a_machine_is_built_only_where_both_allow_it(body: str) -> None:
    word = body.partition(": ")[2]
    assert word in built(mesh(ROUTE % body, GIVING))[0]
    for node, control_plane in ((OWN, ALLOWING), (GIVING, ControlPlaneInfo(zone="east"))):
        text, failures = built(mesh(ROUTE % body, node, control_plane))
        assert word not in text
        assert any("directResponse.body needs a file or a variable" in each for each in failures)


def test_most_proxies_share_what_they_call_also_before_they_have_come() -> None:
    assert bootstrap.LOG_DIRECTORIES == network.LOG_DIRECTORIES
    assert bootstrap.BootstrapParameters(workdir="/x").log_directories == network.LOG_DIRECTORIES
    db = database(objects(MESH + to("/var/log/koguma/a")), {"web-1": OWN})
    likely = network.machine(db, network.likely_node_metadata(network.networking(db, proxy(db, "web-1"))))
    assert likely == network.machine(db, OWN)


def test_a_root_directory_allows_everything() -> None:
    assert MachineAccess(("/",)).may_write("/etc/x")
    assert not MachineAccess(("/",)).may_write("/etc/../x")
    assert at(
        plain(of(mesh(to("/etc/x"), NodeMetadata((PIPE,), log_directories=("/",))), "web-1"))["listener"][
            OUTBOUND
        ],
        LOGS,
    ) == ["/etc/x"]
