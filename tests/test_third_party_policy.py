"""A policy of another package: all that comes for free, and that its mistakes stay its own."""

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from docs.writing import kinds as pages
from koguma import plugins
from koguma.core import admission, pipeline, problems
from koguma.core.envoy_origins import origins, paths
from koguma.core.plan.planner import PlannedChange, Planner
from koguma.core.plan.reader import PlanReader
from koguma.kinds import KINDS
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Invalid
from koguma.model.kind import Kinds
from koguma.model.resource import Resource
from koguma.policies import POLICIES
from tests import build
from tests.core import building, port_confs
from tests.error_lines import ERRORS
from tests.installed_packages import install, install_example
from tests.live_mesh import LiveMesh
from tests.waiting import until

EXAMPLE = Path(__file__).parent.parent / "examples" / "third_party_policy"
KOGUMA = str(Path(sys.executable).with_name("koguma"))
BUILTIN = metadata.EntryPoint("builtin", plugins.BUILTIN, plugins.GROUP)

# The beginning of every plugin below; each goes on in its own way.
SMALL = '''
"""A small policy.

One sentence.
"""
from typing import Annotated
from koguma.model.kind import POLICY, Kind, Policy
from koguma.model.schema import Spec, doc
from koguma.model.target_ref import TargetRef
class Conf(Spec):
    text: Annotated[str | None, doc("A text.")] = None
class To(Spec):
    target_ref: Annotated[TargetRef, doc("Where.")]
    default: Annotated[Conf, doc("What.")] = Conf()
class SmallSpec(Spec):
    to: Annotated[tuple[To, ...], doc("Entries.")] = ()
def fail(*_):
    raise ZeroDivisionError("by my own zero")
def kind(**more):
    base = dict(name="MeshSmall", plural="meshsmalls", short="ms", doc=__doc__, spec=SmallSpec, sync=POLICY,
                policy=Policy(has_to=True))
    return Kind(**{**base, **more})
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Makes an entry point whose module is SMALL and the given lines."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def make(lines, name="small"):
        (tmp_path / f"plugin_{name}.py").write_text(f"{SMALL}\n{textwrap.dedent(lines)}\n")
        names.append(f"plugin_{name}")
        importlib.invalidate_caches()
        return metadata.EntryPoint(name, f"plugin_{name}:POLICIES", plugins.GROUP)

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def note(monkeypatch):
    """The example's own kind."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield importlib.import_module("mesh_note").KIND
    sys.modules.pop("mesh_note", None)


def loaded(*entries):
    warnings: list[str] = []
    return plugins.load(KINDS, (BUILTIN, *entries), warnings.append), warnings


def stored(kind, document):
    return admission.admitted(forms.read_plain(document, kind), None, ControlPlaneInfo()).resource


def test_the_example_is_a_proper_policy_and_its_page_applies(note):
    assert list(plugins.problems(note, (*KINDS, *POLICIES))) == []
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", note.doc, re.DOTALL | re.MULTILINE)
    admitted = admission.admitted(forms.read_plain(yaml.safe_load(example), note), None, ControlPlaneInfo())
    assert admitted.warnings == ()
    assert str(admitted.resource.kri(note.short)) == "kri_mn_default_default__backend_"


def test_the_example_is_planned_and_explained_without_a_line_of_its_own(note):
    kinds = Kinds((*KINDS, *POLICIES, note))
    documents = [
        build.mesh(),
        build.dataplane("web-1", address="10.0.0.1"),
        build.mesh_service("backend", status={"vips": [{"ip": "241.0.0.1"}]}),
        note_of("all", build.ANY, patience="9s"),
    ]
    db = building.database([building.stored(each, kinds) for each in documents], kinds=kinds)
    shorter = building.stored(note_of("backend", build.service_ref("backend"), patience="4s"), kinds)
    planner = Planner(db)
    plan = planner.plan(PlannedChange((shorter,), ()), datetime.now(UTC), PlanReader(envoy_fields=True))
    (group,) = plan.groups
    (value,) = group.values
    assert (value.kind, value.field, value.before, value.after) == ("MeshNote", "patience", "9s", "4s")
    assert value.set_by.path == "spec.to[0].default.patience"
    assert [(each.name, each.proxies) for each in plan.objects] == [("backend", 1)]
    (changed,) = [leaf for each in group.resources for leaf in each.fields]
    assert (changed.before, changed.after) == ("9s", "4s")

    pipeline.take(db, [shorter])
    (name,) = [each.name for each in group.resources]
    path = paths.FieldPath("routes", name, changed.path)
    (leaf,) = origins.explained(db, building.proxy(db, "web-1"), path)
    (origin,) = leaf.origins
    assert (origin.kind, origin.path, leaf.value) == ("MeshNote", "spec.to[0].default.patience", "4s")
    assert [loser["value"] for loser in origin.losers] == ["9s"]


def test_the_example_has_a_reference_page(note):
    page = pages.page(note)
    for words in (
        "# MeshNote",
        "`/meshes/{mesh}/meshnotes`",
        "spec.to[].default.maintenance.weekday",
        "Who answers for the service.",
    ):
        assert words in page


BACKEND_SPEC = {"ports": [{"port": 80, "appProtocol": "http"}]}


def note_of(name, ref, **conf):
    spec = {"to": [{"targetRef": ref, "default": conf}]}
    return {"type": "MeshNote", "name": name, "mesh": "default", "spec": spec}


def test_the_engine_matches_and_merges_the_example(note):
    kinds = Kinds((*KINDS, *POLICIES, note))
    dataplane = {
        "type": "Dataplane",
        "name": "web-1",
        "mesh": "default",
        "networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]},
    }
    services = [
        {"type": "MeshService", "name": name, "mesh": "default", "spec": {"ports": [{"port": 80}]}}
        for name in ("backend", "other")
    ]
    window = {"weekday": "Sunday", "start": "02:00"}
    notes = [
        note_of("all", {"kind": "Mesh"}, owner="platform", appendLinks=["https://a"], maintenance=window),
        note_of(
            "backend",
            {"kind": "MeshService", "name": "backend"},
            owner="team-backend",
            appendLinks=["https://b"],
            maintenance={"start": "04:00"},
        ),
        {**note_of("elsewhere", {"kind": "Mesh"}, owner="nobody")},
    ]
    notes[2]["spec"]["targetRef"] = {"kind": "Dataplane", "labels": {"app": "not-web"}}
    objects = [stored(kinds[document["type"]], document) for document in (dataplane, *services, *notes)]
    mesh = Resource(kind="Mesh", name="default", core_name="default")
    db = pipeline.load(kinds, ControlPlaneInfo(), [mesh, *objects])
    registry = port_confs.of_proxy(db, objects[0].key)
    assert {port.destination.name: dict(port.confs)["MeshNote"] for port in registry.ports} == {
        "backend": {
            "owner": "team-backend",
            "appendLinks": ["https://a", "https://b"],
            "maintenance": {"weekday": "Sunday", "start": "04:00"},
        },
        "other": {"owner": "platform", "appendLinks": ["https://a"], "maintenance": window},
    }


def test_a_proper_plugin_is_taken_whether_it_offers_one_record_or_several(plugin):
    first = plugin("POLICIES = kind()", "one")
    two = plugin("POLICIES = [kind(name='MeshOther', plural='meshothers', short='mo')]", "two")
    registry, warnings = loaded(first, two)
    assert warnings == []
    assert registry.foreign == {"MeshSmall", "MeshOther"}
    assert set(registry.kinds.by_name) == {k.name for k in (*KINDS, *POLICIES)} | registry.foreign


# What a plugin does, and the words with which it is left out.
BROKEN = {
    "raise RuntimeError('on import')": "cannot be loaded: RuntimeError: on import",
    "import sys; sys.exit(3)": "cannot be loaded: SystemExit: 3",
    "import no_such_module": "cannot be loaded: ModuleNotFoundError",
    "POLICY = kind()": "cannot be loaded: AttributeError",
    "POLICIES = 7": "cannot be loaded: TypeError",
    "POLICIES = ['MeshSmall']": "one entry is left out: 'MeshSmall' is no koguma.model.kind.Kind",
    "POLICIES = kind(name='MeshTimeout')": 'is left out: "meshtimeout" is taken by MeshTimeout',
    "POLICIES = kind(plural='meshretries')": '"meshretries" is taken by MeshRetry',
    "POLICIES = kind(short='mt')": '"mt" is taken by MeshTimeout',
    "POLICIES = kind(plural='policies')": '"policies" is a path of the API',
    "POLICIES = kind(name='mesh_small')": "name must match [A-Z][A-Za-z0-9]*, not 'mesh_small'",
    "POLICIES = kind(short='')": "short must match",
    "POLICIES = kind(plural=None)": "plural must match [a-z][a-z0-9]*, not None",
    "POLICIES = kind(doc='')": "doc must be the page of the manual",
    "POLICIES = kind(policy=None)": "policy must be a Policy",
    "POLICIES = kind(policy=Policy(phase=6000, has_to=True))": "policy.phase must be Phase.EXTENSIONS,",
    "POLICIES = kind(policy=Policy())": 'policy says has_to=False, and spec has "to"',
    "POLICIES = kind(policy=Policy(has_to=True, has_rules=True))": 'and spec lacks "rules"',
    "POLICIES = kind(spec=dict)": "spec must be a class made from koguma.model.schema.Spec",
    "POLICIES = kind(validate='no function')": "validate must be a function",
    "POLICIES = kind(display='MeshSmall')": "it cannot be described",
    "class B(Spec):\n  to: tuple[str, ...] = ()\nPOLICIES = kind(spec=B)": '"to" must be a list of objects',
    "class B(Spec):\n  to: tuple[complex, ...] = ()\nPOLICIES = kind(spec=B)": "it cannot be described",
}


@pytest.mark.parametrize("lines", BROKEN)
def test_a_broken_plugin_is_left_out_with_a_warning_and_the_others_stay(plugin, lines):
    good = plugin("POLICIES = kind(name='MeshOther', plural='meshothers', short='mo')", "good")
    bad = plugin(lines, "bad")
    registry, warnings = loaded(bad, good)
    assert registry.foreign == {"MeshOther"}
    (warning,) = warnings
    assert BROKEN[lines] in warning
    assert 'entry point "bad" (plugin_bad:POLICIES)' in warning


def test_nobody_gets_before_our_own(plugin):
    early = metadata.EntryPoint("a", plugin("POLICIES = kind(name='MeshTimeout')", "a").value, plugins.GROUP)
    registry, warnings = loaded(early)
    assert registry.kinds["MeshTimeout"] in POLICIES
    assert len(warnings) == 1


SMALL_OBJECT = {
    "type": "MeshSmall",
    "name": "it",
    "mesh": "default",
    "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"text": "hello"}}]},
}


# The record, the hook that is named, and what it raised.
@pytest.mark.parametrize(
    ("record", "hook", "raised"),
    [
        ("kind(validate=fail)", "validate", "ZeroDivisionError: by my own zero"),
        ("kind(warn=fail)", "warn", "ZeroDivisionError: by my own zero"),
        ("kind(clean=fail)", "clean", "ZeroDivisionError: by my own zero"),
        ("kind(validate=lambda *_: ['words'])", "validate", "TypeError: 'words' is no Violation"),
        ("kind(validate=lambda *_: None)", "validate", "TypeError"),
        ("kind(warn=lambda *_: [1])", "warn", "TypeError: 1 is no str"),
    ],
)
def test_a_hook_that_raises_refuses_the_object_and_names_the_policy(plugin, record, hook, raised):
    registry, _ = loaded(plugin(f"POLICIES = {record}"))
    with pytest.raises(Invalid) as refused:
        stored(registry.kinds["MeshSmall"], SMALL_OBJECT)
    (violation,) = refused.value.violations
    assert (violation.field, violation.rule) == ("spec", "plugin")
    assert f"MeshSmall cannot judge this object: its {hook} raised {raised}" in violation.message


TIMEOUT_SAYS = ("MeshTimeout", {"idleTimeout": "5s"})
SMALL_SAYS = ("MeshSmall", {"text": "hello"})


# The record, what the policies then say, and why less than they did.
@pytest.mark.parametrize(
    ("record", "expected", "why"),
    [
        ("kind(clean=fail)", (TIMEOUT_SAYS,), "clean raised ZeroDivisionError: by my own zero"),
        ("kind(clean=lambda _: {'to': 'a'})", (TIMEOUT_SAYS,), "no longer fits: spec.to: in body must be of"),
        ("kind(warn=fail)", (TIMEOUT_SAYS, SMALL_SAYS), "warn raised ZeroDivisionError: by my own zero"),
    ],
)
def test_what_a_plugin_can_no_longer_read_stops_nobody_else(plugin, record, expected, why):
    """The object was stored when the plugin could still read it."""
    registry, _ = loaded(plugin(f"POLICIES = {record}"))
    readable, _ = loaded(plugin("POLICIES = kind()", "before"))
    timeout = {
        "type": "MeshTimeout",
        "name": "slow",
        "mesh": "default",
        "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}]},
    }
    documents = [
        SMALL_OBJECT,
        timeout,
        {"type": "Dataplane", "name": "web", "mesh": "default", "networking": {"address": "10.0.0.1"}},
        {"type": "MeshService", "name": "api", "mesh": "default", "spec": {"ports": [{"port": 80}]}},
    ]
    objects = [stored(readable.kinds[document["type"]], document) for document in documents]
    failures: dict[str, str] = {}
    db = pipeline.load(plugins.for_engine(registry, failures.__setitem__), ControlPlaneInfo(), objects)
    (port,) = port_confs.of_proxy(db, objects[2].key).ports
    assert port.confs == expected
    assert all(problem.code != problems.INVALID for problem in problems.of_mesh(db, "default"))
    assert why in failures["MeshSmall"]


class Running:
    """`koguma cp run` in a process of its own that finds packages in these folders."""

    def __init__(self, data, *folders):
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        ports = [word for name in ("api", "api-tls", "dp", "xds", "sync") for word in (f"--{name}-port", "0")]
        command = [KOGUMA, "cp", "run", "--data-dir", str(data), *ports]
        log = Path(data).with_suffix(".log")
        ERRORS.follow(log)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--log-level", "error", "--localhost-is-admin"],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        line = self._process.stdout.readline()
        self.address = line.partition("is ready: ")[2].split()[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def __call__(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def koguma(self, *words):
        command = [KOGUMA, *words, "--address", self.address]
        ended = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        return ended.stdout


@pytest.fixture
def example_site(tmp_path):
    """The example, installed as its pyproject says."""
    folder = tmp_path / "site"
    install_example(folder, EXAMPLE)
    return folder


@pytest.fixture
def site(example_site):
    """Packages: the example, one that breaks in its hooks, two that cannot be taken."""
    folder = example_site
    (folder / "shaky.py").write_text(f"{SMALL}\nPOLICIES = [kind(validate=fail)]\n")
    install(folder, "shaky", {"shaky": "shaky:POLICIES"})
    (folder / "again.py").write_text(f"{SMALL}\nPOLICIES = [kind(name='MeshTimeout')]\n")
    install(folder, "again", {"again": "again:POLICIES"})
    install(folder, "gone", {"gone": "gone:POLICIES"})
    return folder


NOTE_URL = "/meshes/default/meshnotes/backend"
NOTE = note_of("backend", {"kind": "MeshService", "name": "backend"}, owner="team-backend")


@pytest.mark.slow
def test_a_control_plane_serves_the_policy_of_an_installed_package(site, tmp_path):
    with Running(tmp_path / "data", site, EXAMPLE) as plane:
        assert plane("PUT", NOTE_URL, NOTE)[0] == 201
        shown = plane("GET", NOTE_URL)[1]
        assert (shown["spec"], shown["kri"]) == (NOTE["spec"], "kri_mn_default_default__backend_")
        assert plane("GET", f"/_kri/{shown['kri']}")[1] == shown
        other_form = plane("GET", f"{NOTE_URL}?format=k8s")[1]
        assert (other_form["kind"], other_form["metadata"]["namespace"]) == ("MeshNote", "kuma-system")
        other_form["metadata"] = {"name": "second", "namespace": "team"}
        status, answer = plane("POST", "/_apply", [other_form])
        assert (status, answer["results"][0]["action"]) == (200, "created")
        listed = plane("GET", "/meshnotes")[1]["items"]
        assert [item["name"] for item in listed] == ["backend", "second.team"]
        assert listed[1]["labels"]["kuma.io/policy-role"] == "producer"

        wrong = note_of("x", {"kind": "Mesh"}, owner="a", runbook="http://x", onwer="b")
        status, answer = plane("PUT", "/meshes/default/meshnotes/x", wrong)
        assert status == 400
        assert [(p["field"], p["rule"]) for p in answer["invalid_parameters"]] == [
            ("spec.to[0].default.onwer", "unknown"),
            ("spec.to[0].default.runbook", "format"),
        ]

        (kind,) = [k for k in plane("GET", "/_resources")[1]["resources"] if k["name"] == "MeshNote"]
        assert (kind["path"], kind["shortName"], kind["policy"]["hasToTargetRef"]) == (
            "meshnotes",
            "mn",
            True,
        )
        (policy,) = [p for p in plane("GET", "/policies")[1]["policies"] if p["name"] == "MeshNote"]
        assert policy["singularDisplayName"] == "Mesh Note"
        described = plane("GET", "/openapi.json")[1]
        assert "/meshes/{mesh}/meshnotes/{name}" in described["paths"]
        assert "Who answers for the service." in json.dumps(described["components"]["schemas"])

        assert "team-backend" in plane.koguma("get", "mn", "backend", "-m", "default", "-o", "yaml")
        assert "meshnotes" in plane.koguma("kinds")


@pytest.mark.slow
def test_broken_packages_are_told_and_kill_nothing(site, tmp_path):
    with Running(tmp_path / "data", site, EXAMPLE) as plane:
        checks = [c for c in plane("GET", "/_check")[1]["checks"] if c["name"] == "plugins"]
        assert [c["status"] for c in checks] == ["warning", "warning"]
        assert 'package again, entry point "again" (again:POLICIES)' in checks[0]["message"]
        assert "package gone" in checks[1]["message"]
        assert "cannot be loaded: ModuleNotFoundError" in checks[1]["message"]
        assert "package gone" in plane.koguma("check")

        status, answer = plane("PUT", "/meshes/default/meshsmalls/it", SMALL_OBJECT)
        assert status == 400
        assert "MeshSmall cannot judge this object" in answer["invalid_parameters"][0]["reason"]
        status, answer = plane("POST", "/_apply", [NOTE, SMALL_OBJECT])
        assert (status, answer["invalid_parameters"][0]["field"]) == (400, "objects[1].spec")
        assert plane("POST", "/_apply", [NOTE])[0] == 200


@pytest.mark.slow
def test_objects_outlive_the_package_that_brought_their_kind(site, tmp_path):
    data = tmp_path / "data"
    with Running(data, site, EXAMPLE) as plane:
        assert plane("PUT", NOTE_URL, NOTE)[0] == 201
    with Running(data) as plane:
        assert plane("GET", NOTE_URL)[0] == 404
        assert plane("GET", "/meshes/default/meshtimeouts")[0] == 200
    with Running(data, site, EXAMPLE) as plane:
        assert plane("GET", NOTE_URL)[1]["spec"] == NOTE["spec"]


@pytest.mark.slow
def test_the_example_acts_on_calls_between_real_envoys(example_site, tmp_path_factory):
    # Unix sockets lie in it, whose paths are short.
    mesh = LiveMesh(tmp_path_factory.mktemp("example"))
    mesh.environment["PYTHONPATH"] = os.pathsep.join((str(example_site), str(EXAMPLE)))
    with mesh:
        mesh.apply(build.allow_all("everybody"))
        mesh.sidecar("backend-1", service="backend")
        web = mesh.sidecar("web-1", service="web", outbounds=["backend"])
        until(lambda: web.call("backend").status == 200)
        assert "x-service-owner" not in web.call("backend").headers

        mesh.apply(note_of("all", {"kind": "Mesh"}, owner="100% platform"))
        until(lambda: web.call("backend").headers.get("x-service-owner") == "100% platform")
        backend = {"kind": "MeshService", "name": "backend"}
        mesh.apply(note_of("backend", backend, owner="team-backend", patience="500ms"))
        until(lambda: web.call("backend").headers.get("x-service-owner") == "team-backend")
        until(lambda: web.call("backend", path="/sleep/2").status == 504)

        mesh.delete("meshnotes", "backend")
        until(lambda: web.call("backend").headers.get("x-service-owner") == "100% platform")
        until(lambda: web.call("backend", path="/sleep/2").status == 200)


@pytest.mark.slow
def test_a_field_that_the_example_and_a_built_in_policy_set_is_told_wherever_people_look(
    example_site, tmp_path
):
    objects = [
        {"type": "MeshService", "name": "backend", "mesh": "default", "spec": BACKEND_SPEC},
        {"type": "Dataplane", "name": "web", "mesh": "default", "networking": {"address": "10.0.0.1"}},
    ]
    patient = note_of("patient", {"kind": "Mesh"}, patience="5s")
    expected = 'MeshTimeout "mesh-timeout-all-default"'
    with Running(tmp_path / "data", example_site, EXAMPLE) as plane:
        assert plane("POST", "/_apply", objects)[0] == 200
        tried = plane("POST", "/_apply?dryRun=All", [patient])[1]["results"][0]["warnings"]
        (text,) = plane("POST", "/_apply", [patient])[1]["results"][0]["warnings"]
        assert tried == [text]
        assert text.endswith("(KG017)")
        assert 'MeshNote "patient"' in text
        assert expected in text
        assert "KG017" in plane.koguma("lint", "--live")
        assert "KG017" in plane.koguma("inspect", "dataplane", "web", "-m", "default")


@pytest.mark.slow
def test_cases_about_the_policy_are_checked_without_a_line_of_its_own(example_site):
    environment = {**os.environ, "PYTHONPATH": f"{example_site}{os.pathsep}{EXAMPLE}"}

    def run(*words):
        return subprocess.run(
            [KOGUMA, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    cases = EXAMPLE / "cases" / "shop.yaml"
    ended = run("test", str(EXAMPLE / "cases"))
    assert (ended.returncode, ended.stdout.count("ok notes: ")) == (0, 2), ended.stdout
    wrong = example_site / "wrong.yaml"
    wrong.write_text(cases.read_text().replace("timeout: 3s", "timeout: 4s"))
    ended = run("test", str(wrong))
    assert ended.returncode == 2
    assert "MeshNote patience = 3s, set by kri_mn_default_default__backend_" in ended.stdout
    ended = run("can", "web", "backend", "-f", str(cases))
    assert ended.stdout.startswith("yes: web to backend")
    assert "with timeout 3s" in ended.stdout
