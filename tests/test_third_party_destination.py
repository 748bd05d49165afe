"""A destination of another package: what comes for free, on real traffic; its mistakes stay its own."""

import base64
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma import plugins
from koguma.core import admission
from koguma.kinds import KINDS, mesh_external_service
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.plugins import entry_points
from tests import build
from tests.installed_packages import install, install_example
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

EXAMPLE = Path(__file__).parent.parent / "examples" / "third_party_destination"

# The beginning of every plugin below; each goes on in its own way.
SMALL = """
from typing import Annotated
from koguma.model.destination import DestinationParts, DestinationPlugin
from koguma.model.schema import Spec, doc
class Config(Spec):
    text: Annotated[str | None, doc("A text.")] = None
def build(config, port):
    return DestinationParts()
def fail(*_):
    raise ZeroDivisionError("by my own zero")
def plugin(**more):
    return DestinationPlugin(**{**dict(type="Small", doc="Small.", config=Config, build=build), **more})
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """Makes an entry point whose module is SMALL and the given lines."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def make(lines: str, name: str = "small") -> metadata.EntryPoint:
        (tmp_path / f"destination_{name}.py").write_text(f"{SMALL}\n{textwrap.dedent(lines)}\n")
        names.append(f"destination_{name}")
        importlib.invalidate_caches()
        return metadata.EntryPoint(name, f"destination_{name}:PLUGINS", entry_points.DESTINATIONS)

    yield make
    for name in names:
        sys.modules.pop(name, None)


def loaded(*entries: metadata.EntryPoint) -> tuple[list[str], list[str]]:
    """The types that external services can name, and the warnings."""
    warnings: list[str] = []
    kinds = plugins.load(KINDS, entries, warnings.append).kinds
    return [plugin.type for plugin in kinds["MeshExternalService"].extensions], warnings


def test_a_proper_plugin_is_taken_whether_a_package_offers_one_or_several(entry):
    one = entry("PLUGINS = plugin()", "one")
    two = entry("PLUGINS = [plugin(type='Other'), plugin(type='third.example-1', protocols=('tcp',))]", "two")
    assert loaded(one, two) == (["Lambda", "Small", "Other", "third.example-1"], [])
    assert loaded() == (["Lambda"], [])


# What a plugin does, and the words with which it is left out.
BROKEN = {
    "raise RuntimeError('on import')": "cannot be loaded: RuntimeError: on import",
    "import sys; sys.exit(3)": "cannot be loaded: SystemExit: 3",
    "PLUGIN = plugin()": "cannot be loaded: AttributeError",
    "PLUGINS = 7": "cannot be loaded: TypeError",
    "PLUGINS = ['Small']": "one entry is left out: 'Small' is no koguma.model.destination.Dest",
    "PLUGINS = plugin(type='Lambda')": 'destination "Lambda" is left out: type "Lambda" is taken',
    "PLUGINS = [plugin(), plugin()]": 'type "Small" is taken',
    "PLUGINS = plugin(type='two words')": "type must match",
    "PLUGINS = plugin(type=None)": "type must match",
    "PLUGINS = plugin(doc='')": "doc must be the page of the manual",
    "PLUGINS = plugin(config=dict)": "config must be a class made from koguma.model.schema.Spec",
    "PLUGINS = plugin(build=None)": "build must be a function",
    "PLUGINS = plugin(validate='no')": "validate must be a function",
    "PLUGINS = plugin(protocols='http')": "protocols must be a tuple of words",
    "PLUGINS = plugin(protocols=('udp',))": "protocols must be of tcp, tls, http, http2, grpc",
    "class Odd(Spec):\n    x: Annotated[complex, doc('?')]\nPLUGINS = plugin(config=Odd)": "be described",
}


@pytest.mark.parametrize("lines", BROKEN)
def test_a_broken_plugin_is_left_out_and_its_package_is_named(entry, lines):
    types, (warning, *others) = loaded(entry(lines))
    assert types in (["Lambda"], ["Lambda", "Small"])  # of two that are equal the first is taken
    assert BROKEN[lines] in warning
    assert 'entry point "small" (destination_small:PLUGINS)' in warning
    assert others == []


@pytest.fixture
def example(monkeypatch) -> Iterator[Any]:
    """The example's own plugin."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield importlib.import_module("hosted_api").PLUGIN
    sys.modules.pop("hosted_api", None)


def test_the_page_of_the_example_applies(example):
    kind = mesh_external_service.with_extensions((example,))
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", example.doc, re.DOTALL | re.MULTILINE)
    admitted = admission.admitted(forms.read_plain(yaml.safe_load(text), kind), None, ControlPlaneInfo())
    assert admitted.warnings == ()


class ExampleMesh(LiveMesh):
    """An API that wants a key, `web`, which calls it, and a second plugin, which always fails."""

    web: Sidecar
    outside: Echo

    def service(self, name: str, type_: str, **config: Any) -> Any:
        match = {"type": "InternalVIP", "value": f"{name}.test", "port": 80, "protocol": "http"}
        extension = {"type": type_, "config": config}
        spec = {"match": [match], "destination": {"type": "Extension", "extension": extension}}
        return build.document("MeshExternalService", name, spec=spec)

    def hosted(self, **config: Any) -> Any:
        conf = {
            "host": "127.0.0.1",
            "port": self.outside.port,
            "tls": False,
            "key": {"secret": "key"},
            **config,
        }
        return self.service("hosted", "HostedApi", **conf)

    def start(self) -> None:
        self.outside = Echo(name="api")
        self._echoes.append(self.outside)
        ports = {name: free_port() for name in ("hosted", "shaky", "nowhere")}
        outbounds = [
            {"port": port, "backendRef": {"kind": "MeshExternalService", "name": name, "port": 80}}
            for name, port in ports.items()
        ]
        self.apply(key("first key"), self.hosted(), build.dataplane("web", inbound=[], outbound=outbounds))
        self.web = self.sidecar("web", serves=False)
        self.web.outbounds = ports

    def given(self, path: str = "/") -> str | None:
        """The key that a call of the API came with."""
        response = self.web.call("hosted", path=path)
        return response.json["headers"].get("x-api-key") if response.status == 200 else None


def key(text: str) -> Any:
    return build.secret("key", base64.b64encode(text.encode()).decode())


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleMesh]:
    directory = tmp_path_factory.mktemp("api")
    site = directory / "site"
    install_example(site, EXAMPLE)
    (site / "shaky.py").write_text(f"{SMALL}\nPLUGINS = plugin(type='Shaky', build=fail)\n")
    install(site, "shaky", {"shaky": "shaky:PLUGINS"}, entry_points.DESTINATIONS)
    install(site, "gone", {"gone": "gone:PLUGINS"}, entry_points.DESTINATIONS)
    mesh = ExampleMesh(directory / "m")
    mesh.environment["PYTHONPATH"] = os.pathsep.join((str(site), str(EXAMPLE)))
    with mesh:
        mesh.start()
        yield mesh


@pytest.mark.slow
def test_the_example_gives_calls_their_key_and_a_new_one_at_once(mesh: ExampleMesh):
    until(lambda: mesh.given() == "first key", "the API is called")
    mesh.apply(key("second key"))
    until(lambda: mesh.given() == "second key", "the new key is used")
    mesh.apply_and_wait(mesh.hosted(header="authorization", prefix="Bearer "))
    seen = mesh.web.call("hosted", Authorization="of the program").json["headers"]
    assert seen["authorization"] == "Bearer second key"
    mesh.apply_and_wait(mesh.hosted())


@pytest.mark.slow
def test_mistakes_are_refused_with_their_places_and_advice_is_given(mesh: ExampleMesh):
    wrong = mesh.hosted(hots="x", header="X Y", key={"secrets": "key"})
    answer = mesh.request("POST", "/_apply", [wrong])
    at = "objects[0].spec.destination.extension.config"
    assert answer.status == 400
    assert answer.fields == [
        (f"{at}.key.secret", "in body is required"),
        (f"{at}.key.secrets", 'unknown field "secrets"; did you mean "secret"?'),
        (f"{at}.hots", 'unknown field "hots"; did you mean "host"?'),
    ]
    answer = mesh.request("POST", "/_apply", [mesh.hosted(header="X Y")])
    assert [field for field, _ in answer.fields] == [f"{at}.header"]
    (result,) = mesh.request("POST", "/_apply?dryRun=All", [mesh.hosted(header="x-other")]).json["results"]
    (warning,) = result["warnings"]
    assert warning.endswith("config: without TLS everybody on the way can read the key")


@pytest.mark.slow
def test_the_key_is_in_no_dump_and_in_no_log(mesh: ExampleMesh):
    shown = (
        mesh.request("GET", "/meshes/default/dataplanes/web/_config").text,
        mesh.web.admin("/config_dump?include_eds"),
        mesh.koguma("inspect", "dataplane", "web").stdout,
        mesh.control_plane.output,
        mesh.web.output,
    )
    assert "credential_injector" in shown[0]
    for text in shown:
        assert "second key" not in text
        assert base64.b64encode(b"second key").decode() not in text


@pytest.mark.slow
@pytest.mark.expected_errors("a part of the configuration cannot be built")
def test_a_plugin_that_fails_takes_its_own_service_away_and_is_named(mesh: ExampleMesh):
    mesh.apply_and_wait(mesh.service("shaky", "Shaky"))
    assert mesh.web.call("shaky").status == 503
    assert mesh.given() == "second key"
    words = (
        'the plugin of type "Shaky" cannot build it: ZeroDivisionError: by my own zero; tell the makers of'
    )
    shown = mesh.koguma("get", "proxies").stdout
    assert words in shown
    assert "package shaky" in shown
    checked = mesh.koguma("check", check=False).stdout
    assert "kri_extsvc_default_default__shaky_80 cannot be built" in checked
    assert "package gone" in checked
    assert "cannot be loaded: ModuleNotFoundError" in checked
    mesh.delete_and_wait("meshexternalservices", "shaky")


@pytest.mark.slow
@pytest.mark.expected_errors("a part of the configuration cannot be built")
def test_a_plugin_that_is_not_installed_is_reported_wherever_people_look(mesh: ExampleMesh):
    nowhere = mesh.service("nowhere", "HostedAPIs", host="x")
    tried = mesh.request("POST", "/_apply?dryRun=All", [nowhere]).json["results"][0]["warnings"]
    (text,) = mesh.request("POST", "/_apply", [nowhere]).json["results"][0]["warnings"]
    assert tried == [text]
    assert 'did you mean "HostedApi"?' in text
    assert text.endswith("(KG019)")
    mesh.wait_until_synced(mesh.revision())
    assert mesh.web.call("nowhere").status == 503
    assert mesh.given() == "second key"
    assert "KG019" in mesh.koguma("lint", "--live", check=False).stdout
    assert "KG019" in mesh.koguma("inspect", "dataplane", "web").stdout
    until(
        lambda: "PluginMissing" in mesh.koguma("describe", "extsvc", "nowhere").stdout, "the status says it"
    )
    assert 'no plugin "HostedAPIs" is installed' in mesh.koguma("get", "proxies").stdout
    mesh.delete_and_wait("meshexternalservices", "nowhere")


@pytest.mark.slow
@pytest.mark.expected_errors("a part of the configuration cannot be built")
def test_calls_go_on_when_a_control_plane_comes_back_without_the_package(mesh: ExampleMesh):
    path = mesh.environment.pop("PYTHONPATH")
    mesh.control_plane.kill()
    mesh.start_control_plane()
    until(lambda: "web" in mesh.proxies(), "the proxy is back")
    mesh.wait_until_synced()
    assert mesh.given() == "second key"
    assert "KG019" in mesh.koguma("lint", "--live", check=False).stdout
    mesh.environment["PYTHONPATH"] = path
    mesh.control_plane.kill()
    mesh.start_control_plane()
    until(lambda: "web" in mesh.proxies(), "the proxy is back")
    mesh.apply(key("third key"))
    until(lambda: mesh.given() == "third key", "the package is back")
