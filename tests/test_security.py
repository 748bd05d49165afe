"""What docs/security.md promises where no other test holds it, and that the tests it names are there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import re2

from koguma.envoy.callers import UriSan
from tests.control_plane import LocalControlPlane
from tests.http_client import request_over_socket

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "koguma"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")

# The command line and the agent connect to where their own user says. The store connects to its database and
# the tracer to its collector, both out of the settings. What objects name is called by one module, which
# asks the operator's list; other control planes of the store, by another.
_CLIENTS = ("cli", "dp")
_CALLING = "runtime/outgoing_calls.py"
_CALLING_PEERS = "runtime/peer_calls.py"
_CALLING_GLOBAL = "sync/zone_client.py"  # whose address the operator gives
_CALLING_COLLECTOR = "runtime/audit_collector.py"  # whose address the operator gives
_CONNECTING = {
    *("urllib.request", "http.client", "requests", "httpx", "ClientSession", "create_connection"),
    *("open_connection", "insecure_channel", "secure_channel", "urlopen"),
}
_RUNNING_TEXT = {"import_module", "unsafe_load", "full_load"}
_BUILTINS = {"eval", "exec", "compile", "__import__"}  # methods of these names, as CEL's, are not Python's
_RUNNING_MODULES = {"pickle", "marshal", "shelve", "code", "runpy", "dill"}


def modules(*leaving_out: str) -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in leaving_out:
            yield path, ast.parse(path.read_text())


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules that a module imports, and what it imports from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names(tree: ast.AST) -> Iterator[str]:
    """The modules that a module imports, and the functions that it calls by their last name."""
    yield from imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            is_method = isinstance(function, ast.Attribute)
            receiver = function.value.id if is_method and isinstance(function.value, ast.Name) else ""
            if receiver not in ("re", "re2"):
                yield function.attr if is_method else getattr(function, "id", "")


def builtins_called(tree: ast.AST) -> Iterator[str]:
    """Python's own functions that a module calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "builtins":
            yield node.attr


def test_the_tests_that_the_page_names_are_there():
    found = NAMED.findall((ROOT / "docs" / "security.md").read_text())
    assert len(found) >= 30
    missing = [
        f"{file}::{name}"
        for file, name in found
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert missing == []


def test_the_control_plane_connects_to_nothing_that_a_user_names():
    connecting = {
        path.relative_to(SOURCE).as_posix()
        for path, tree in modules(*_CLIENTS)
        if _CONNECTING.intersection(names(tree))
    }
    assert connecting == {_CALLING, _CALLING_PEERS, _CALLING_GLOBAL, _CALLING_COLLECTOR}


def test_no_code_comes_through_the_api():
    running = {
        str(path)
        for path, tree in modules(*_CLIENTS)
        if _RUNNING_TEXT.intersection(names(tree))
        or _RUNNING_MODULES.intersection(imports(tree))
        or _BUILTINS.intersection(builtins_called(tree))
    }
    assert running == set()


def test_no_key_is_the_same_in_two_installations(tmp_path):
    with LocalControlPlane(tmp_path / "one") as one, LocalControlPlane(tmp_path / "two") as two:
        token = (one.data_dir / "admin-token").read_text().strip()
        as_admin = {"Authorization": f"Bearer {token}"}
        assert one("GET", "/meshes", **as_admin).status == 200
        assert two("GET", "/meshes", **as_admin).status == 401
        keys = [
            {
                each["data"]
                for each in request_over_socket(plane.data_dir, "GET", "/globalsecrets").json["items"]
            }
            for plane in (one, two)
        ]
    assert all(keys)
    assert keys[0].isdisjoint(keys[1])
    for name in ("ca-key.pem", "tls-key.pem", "admin-token"):
        assert (tmp_path / "one" / name).read_text() != (tmp_path / "two" / name).read_text()


@pytest.mark.parametrize("character", [*".*+?|()[]{}^$\\", "\\E", ".*", "[^,]*", "(?i)"])
def test_a_name_with_a_dot_lets_in_nobody_else(character):
    """Whatever a regular expression would make of a name, the pattern lets in that very name."""
    domain = "spiffe://default/"
    text = f"{domain}a{character}b"
    for uri in (UriSan(text, domain=domain), UriSan(text)):
        assert re2.fullmatch(uri.pattern, text)
        for other in ("ab", "aXb", "aXXb", "a,b", "A" + character + "b", "a"):
            assert not re2.fullmatch(uri.pattern, domain + other), other
    prefix = UriSan(text, is_prefix=True, domain=domain)
    assert re2.fullmatch(prefix.pattern, text + "/more")
    assert not re2.fullmatch(prefix.pattern, f"{domain}aXb/more")
