"""The local admin: by the socket in the data directory, by a token, and by no address whatever it is."""

import asyncio
import http.client
import socket
import stat
import subprocess
from contextlib import closing

import pytest

from koguma.api.authn import is_passed_on
from koguma.api.server import HttpServer
from koguma.runtime import data_directory
from tests.build import timeout
from tests.control_plane import LocalControlPlane, WatchStream
from tests.envoy.real_envoy import cluster, endpoint, envoy, hcm, listener
from tests.http_client import SocketConnection, request_over_socket, send_request
from tests.live_mesh import KOGUMA
from tests.ports import free_port

pytestmark = pytest.mark.slow

MESH = {"type": "Mesh", "name": "forged", "skipCreatingInitialPolicies": ["*"]}
KUBE = "/apis/kuma.io/v1alpha1"

# Every way in: what each answers to somebody who is nobody.
DOORS = [
    ("GET", "/meshes", None),
    ("GET", "/meshes/default", None),
    ("GET", "/globalsecrets", None),
    ("GET", "/config", None),
    ("GET", "/metrics", None),
    ("GET", "/_check", None),
    ("GET", "/_proxies?mesh=default", None),
    ("GET", "/openapi.json", None),
    ("GET", "/meshes/default/dataplanes/web-1/_config", None),
    ("GET", "/meshes?watch=true", None),
    ("GET", f"{KUBE}/meshes", None),
    ("GET", f"{KUBE}/meshes?watch=true", None),
    ("GET", "/api/v1/namespaces", None),
    ("GET", "/apis/koguma.io/v1/meshes", None),
    ("PUT", "/meshes/forged", MESH),
    ("DELETE", "/meshes/default", None),
    ("POST", "/_apply", [timeout()]),
    ("POST", "/tokens/user", {"name": "x", "groups": ["mesh-system:admin"], "validFor": "1h"}),
    ("POST", "/tokens/dataplane", {"mesh": "default", "validFor": "1h"}),
    ("POST", "/tokens/zone", {"zone": "east", "scope": ["cp"]}),
    ("POST", f"{KUBE}/meshes", {"apiVersion": "kuma.io/v1alpha1", "kind": "Mesh", "metadata": {"name": "x"}}),
]
REFUSED = (401, 403)


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """A control plane as it is without any setting."""
    with LocalControlPlane(tmp_path_factory.mktemp("default"), localhost_is_admin=None) as plane:
        assert not plane.settings.localhost_is_admin
        yield plane


@pytest.mark.parametrize(("method", "path", "body"), DOORS)
def test_a_loopback_address_alone_is_nobody_at_every_door(default, method, path, body):
    assert default(method, path, body).status in REFUSED
    impersonating = default(method, path, body, Impersonate_User="mesh-system:admin")
    assert impersonating.status in REFUSED


def test_who_comes_to_a_port_without_a_token_is_anonymous(default):
    assert default("GET", "/who-am-i").json["name"] == "mesh-system:anonymous"
    told = default("GET", "/meshes").json["detail"]
    assert "`koguma` finds api.sock in the data directory (KOGUMA_DATA_DIR)" in told
    assert "curl takes it with --unix-socket" in told


@pytest.mark.parametrize(("method", "path", "body"), DOORS)
def test_the_owner_of_the_data_directory_comes_in_by_its_socket(tmp_path, default, method, path, body):
    with closing(SocketConnection(default.data_dir)) as connection:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if "watch" in path:
            connection.request(method, path, headers=headers)
            assert connection.getresponse().status == 200
            return
        if method == "DELETE":
            path = "/meshes/not-there"
        if method in ("PUT", "POST") and not path.startswith("/tokens"):
            path += "?dryRun=All" if path.startswith("/apis") else "?dry_run=true"
    assert request_over_socket(default.data_dir, method, path, body).status not in REFUSED


def test_the_socket_is_the_owners_alone_and_goes_with_the_control_plane(tmp_path):
    path = tmp_path / data_directory.ADMIN_SOCKET
    with LocalControlPlane(tmp_path, localhost_is_admin=None):
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert request_over_socket(tmp_path, "GET", "/who-am-i").json["name"] == "mesh-system:admin"
    assert not path.exists()


def test_a_token_counts_on_the_socket_too(default):
    asks = {"name": "vera", "groups": [], "validFor": "1h"}
    token = request_over_socket(default.data_dir, "POST", "/tokens/user", asks).body.decode()
    as_vera = {"Authorization": f"Bearer {token}"}
    assert request_over_socket(default.data_dir, "GET", "/who-am-i", **as_vera).json["name"] == "vera"
    assert (
        request_over_socket(default.data_dir, "GET", "/meshes", Authorization="Bearer nonsense").status == 401
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Via": "1.1 edge"},
        {"X_Forwarded_For": "10.0.0.1"},
        {"X_Envoy_External_Address": "10.0.0.1"},
        {"X_Request_Id": "1"},
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "same-origin"},
    ],
)
def test_what_a_proxy_or_a_browser_passes_on_to_the_socket_is_nobodys(default, headers):
    assert request_over_socket(default.data_dir, "GET", "/meshes", **headers).status == 403


def test_a_socket_that_a_crash_left_is_replaced(tmp_path):
    path = tmp_path / data_directory.ADMIN_SOCKET
    with socket.socket(socket.AF_UNIX) as left, data_directory.socket_address(path) as address:
        left.bind(address)
    assert path.exists()
    with LocalControlPlane(tmp_path, localhost_is_admin=None):
        assert request_over_socket(tmp_path, "GET", "/meshes").status == 200


def test_the_socket_of_another_control_plane_is_left_alone_and_told(tmp_path):
    with LocalControlPlane(tmp_path, localhost_is_admin=None) as first:
        with LocalControlPlane(tmp_path, localhost_is_admin=None):
            checks = request_over_socket(tmp_path, "GET", "/_check").json["checks"]
            assert "local admin" not in {check["name"] for check in checks}
            assert request_over_socket(tmp_path, "GET", "/config").json["apiPort"] == first.port
        assert request_over_socket(tmp_path, "GET", "/config").json["apiPort"] == first.port


def test_a_path_that_is_too_long_for_the_kernel_works_too(tmp_path):
    folder = tmp_path / ("long-" * 20) / ("longer-" * 10)
    with LocalControlPlane(folder, localhost_is_admin=None):
        assert request_over_socket(folder, "GET", "/meshes").status == 200


def test_no_moment_lets_others_open_the_socket(tmp_path):
    """Before it has its rights and its name, nobody listens."""

    async def refuse(_request):
        raise AssertionError

    async def listen():
        server = HttpServer(refuse)
        await server.start()
        await server.listen_at(tmp_path / "api.sock")
        modes = [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()]
        await server.stop()
        return modes

    assert asyncio.run(listen()) == [0o600]
    assert list(tmp_path.iterdir()) == []


def test_headers_of_proxies_are_known_in_every_spelling():
    for name in ("via", "FORWARDED", "x-forwarded-anything", "X_Forwarded_For", "x-envoy-peer-metadata"):
        assert is_passed_on({name: "1"}), name
    assert not is_passed_on({"Accept": "*/*", "User-Agent": "curl/8", "Host": "localhost", "X-Team": "web"})


# A real proxy in front: everybody who comes through it has a loopback address.


@pytest.fixture(scope="module", params=[False, True], ids=["as it is", "where localhost is admin"])
def behind_envoy(request, tmp_path_factory):
    """A port of an Envoy that passes everything on to the API."""
    with LocalControlPlane(tmp_path_factory.mktemp("behind"), localhost_is_admin=request.param) as plane:
        routes = {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "api", "timeout": "0s"}}],
                }
            ]
        }
        port, folder = free_port(), tmp_path_factory.mktemp("envoy")
        front = listener("front", port, hcm(routes))
        with envoy([front], [cluster("api", endpoint(plane.port))], folder):
            yield plane, port


@pytest.mark.parametrize(("method", "path", "body"), DOORS)
def test_who_comes_through_a_proxy_on_this_machine_is_nobody(behind_envoy, method, path, body):
    _, port = behind_envoy
    for more in ({}, {"Host": "localhost:5681"}, {"Impersonate_User": "mesh-system:admin"}):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        assert send_request(connection, method, path, body, **more).status in REFUSED


def test_a_token_works_through_a_proxy(behind_envoy):
    plane, port = behind_envoy
    token = (plane.data_dir / "admin-token").read_text().strip()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    assert send_request(connection, "GET", "/meshes", Authorization=f"Bearer {token}").status == 200
    with WatchStream(port, "/meshes?watch=true", {"Authorization": f"Bearer {token}"}) as lines:
        assert lines.next()["type"] == "ADDED"


# Pages that a browser on this machine shows.

PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
    {"Host": "evil.example:5681", "Origin": "http://evil.example:5681", "Sec_Fetch_Site": "same-origin"},
]


@pytest.mark.parametrize("headers", PAGES)
@pytest.mark.parametrize(("method", "path", "body"), DOORS)
def test_a_hostile_page_is_nobody_also_where_localhost_is_admin(plane, headers, method, path, body):
    assert plane(method, path, body, **headers).status in REFUSED


@pytest.mark.parametrize("headers", PAGES)
def test_a_hostile_page_is_nobody_as_it_is(default, headers):
    assert default("GET", "/meshes", **headers).status == 403
    assert default("PUT", "/meshes/forged", MESH, **headers).status == 403


# The command line.


def koguma(data_dir, *words, **variables):
    path = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(data_dir / "home"),
        "XDG_CONFIG_HOME": str(data_dir / "config"),
    }
    command = [KOGUMA, *words]
    return subprocess.run(command, env={**path, **variables}, capture_output=True, text=True, check=False)


def test_the_command_finds_the_socket_of_its_data_directory(default, tmp_path):
    here = {"KOGUMA_DATA_DIR": str(default.data_dir)}
    assert "default" in koguma(tmp_path, "get", "meshes", **here).stdout
    by_address = koguma(tmp_path, "get", "meshes", "--address", default.address, **here)
    assert "default" in by_address.stdout, by_address.stderr
    watching = koguma(tmp_path, "get", "meshes", "--address", f"https://localhost:{default.tls_port}", **here)
    assert "default" in watching.stdout, watching.stderr


def test_a_kubeconfig_gets_the_token_of_the_data_directory(default, tmp_path):
    file = tmp_path / "kubeconfig"
    made = koguma(tmp_path, "kubeconfig", "-o", str(file), KOGUMA_DATA_DIR=str(default.data_dir))
    assert made.returncode == 0, made.stderr
    assert (default.data_dir / "admin-token").read_text().strip() in file.read_text()
    assert f":{default.tls_port}" in file.read_text()


def test_a_context_names_the_data_directory(default, tmp_path):
    added = koguma(
        tmp_path, "config", "add", "here", "--address", default.address, "--data-dir", str(default.data_dir)
    )
    assert added.returncode == 0, added.stderr
    assert "default" in koguma(tmp_path, "get", "meshes").stdout
    far = ("config", "add", "far", "--address", "https://cp.example:5682", "--data-dir", "/tmp")
    assert koguma(tmp_path, *far).returncode == 2


def test_who_has_no_data_directory_is_told_what_to_do(default, tmp_path):
    refused = koguma(tmp_path, "get", "meshes", "--address", default.address)
    assert refused.returncode == 4
    assert "`koguma` finds api.sock in the data directory (KOGUMA_DATA_DIR)" in refused.stderr


def test_the_socket_of_one_control_plane_is_not_used_for_the_address_of_another(default, tmp_path):
    with LocalControlPlane(tmp_path / "other", localhost_is_admin=None) as other:
        refused = koguma(
            tmp_path, "get", "meshes", "--address", other.address, KOGUMA_DATA_DIR=str(default.data_dir)
        )
        assert refused.returncode == 4
        other_ca = str(other.data_dir / "ca.pem")
        words = ("get", "meshes", "--address", f"https://localhost:{other.tls_port}")
        here = {"KOGUMA_DATA_DIR": str(default.data_dir)}
        # Its certificate is not of our CA, so our token is not sent there.
        assert koguma(tmp_path, *words, **here).returncode == 3
        assert koguma(tmp_path, *words, "--ca-file", other_ca, **here).returncode == 4
