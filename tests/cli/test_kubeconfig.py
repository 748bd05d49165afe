"""`koguma kubeconfig` against a real control plane: its files work, and what others wrote stays."""

import base64
import http.client
import json
import shutil
import ssl
import stat
import subprocess

import pytest
import yaml

pytestmark = pytest.mark.slow

OTHERS = """\
# kubectl's own
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: work
clusters:
- name: work
  cluster: {server: "https://work.example:6443", insecure-skip-tls-verify: yes}
contexts:
- name: work
  context: {cluster: work, user: work, namespace: team}
users:
- name: work
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login, args: ["--days", "7"]}
- name: old
  user:
    auth-provider: {name: oidc, config: {expiry: 2031-05-06T07:08:09Z, id-token: "123"}}
"""


@pytest.fixture
def cli(koguma, monkeypatch, control_plane, tmp_path):
    """`koguma` with the control plane's address in the environment, in a home without kubeconfigs."""
    monkeypatch.setenv("KOGUMA_ADDRESS", control_plane.address)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KOGUMA_DATA_DIR", raising=False)
    return koguma


@pytest.fixture
def admin_token(control_plane):
    return (control_plane.data_dir / "admin-token").read_text().strip()


def named(config, part, name="koguma"):
    """The one entry of that name."""
    (entry,) = [candidate for candidate in config[part] if candidate["name"] == name]
    return entry[part.removesuffix("s")]


def who(config, name="koguma"):
    """Who the server says we are, asked with nothing but what the file holds."""
    cluster = named(config, "clusters", name)
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    host = cluster["server"].removeprefix("https://")
    connection = http.client.HTTPSConnection(host, context=context, timeout=60)
    token = named(config, "users", name)["token"]
    connection.request("GET", "/who-am-i", headers={"Authorization": f"Bearer {token}"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["name"]


def test_the_file_alone_is_enough_to_talk_to_the_control_plane(cli, control_plane, admin_token):
    ended = cli("kubeconfig")
    assert (ended.code, ended.err) == (0, "")
    config = yaml.safe_load(ended.out)
    assert (config["apiVersion"], config["kind"]) == ("v1", "Config")
    assert config["current-context"] == "koguma"
    assert named(config, "contexts") == {"cluster": "koguma", "user": "koguma", "namespace": "mesh-default"}
    assert named(config, "users") == {"token": admin_token}
    cluster = named(config, "clusters")
    assert cluster["server"] == f"https://127.0.0.1:{control_plane.tls_port}"
    assert (
        base64.b64decode(cluster["certificate-authority-data"])
        == (control_plane.data_dir / "ca.pem").read_bytes()
    )
    assert who(config) == "mesh-system:admin"


def test_kubectl_reads_it(cli, tmp_path):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl on the PATH")
    file = tmp_path / "kubeconfig"
    file.write_text(OTHERS)
    assert cli("kubeconfig", "--merge", "-o", str(file)).code == 0
    kubectl = subprocess.run(
        [kubectl, "--kubeconfig", str(file), "config", "view", "--raw", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    view = json.loads(kubectl.stdout)
    assert view["current-context"] == "koguma"
    assert {candidate["name"] for candidate in view["contexts"]} == {"koguma", "work"}
    assert named(view, "clusters", "work")["insecure-skip-tls-verify"] is True
    assert named(view, "users", "old")["auth-provider"]["config"] == {
        "expiry": "2031-05-06T07:08:09Z",
        "id-token": "123",
    }
    assert who(view) == "mesh-system:admin"


def test_a_written_file_is_private_and_the_token_is_not_printed(cli, tmp_path, admin_token, control_plane):
    file = tmp_path / "new" / "kubeconfig"
    for _ in range(2):  # its own file is written again
        ended = cli("kubeconfig", "-o", str(file))
        assert ended.code == 0
        assert ended.out == (
            f'context "koguma" written to {file}, and current there:'
            f" https://127.0.0.1:{control_plane.tls_port}, namespace mesh-default\n"
        )
        assert admin_token not in ended.out + ended.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert who(yaml.safe_load(file.read_text())) == "mesh-system:admin"


def test_on_a_terminal_the_token_is_masked_unless_asked_for(cli, monkeypatch, admin_token, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    masked = cli("kubeconfig")
    assert named(yaml.safe_load(masked.out), "users") == {"token": "*****"}
    assert masked.err == "the token is masked; -o FILE and --merge write it, -o - shows it\n"
    assert named(yaml.safe_load(cli("kubeconfig", "-o", "-").out), "users") == {"token": admin_token}


@pytest.mark.parametrize(("words", "current"), [((), "koguma"), (("--keep-current",), "work")])
def test_a_merge_leaves_everything_of_others_as_it_was(cli, tmp_path, words, current):
    file = tmp_path / "home" / ".kube" / "config"
    file.parent.mkdir(parents=True)
    file.write_text(OTHERS)
    file.chmod(0o644)
    for namespace in ("mesh-default", "team-a"):  # the second time it replaces its own
        assert cli("kubeconfig", "--merge", "-n", namespace, *words).code == 0
        after, before = yaml.safe_load(file.read_text()), yaml.safe_load(OTHERS)
        assert after["current-context"] == current
        assert named(after, "contexts")["namespace"] == namespace
        for part in ("clusters", "contexts"):
            assert after[part][:-1] == before[part]
        assert after["users"][0] == before["users"][0]
        assert named(after, "users", "old")["auth-provider"]["config"]["expiry"] == "2031-05-06T07:08:09Z"
        assert after["preferences"] == {"colors": True}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_merge_goes_where_kubectl_would_write(cli, tmp_path, monkeypatch):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    first.write_text(OTHERS)
    second.write_text("")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{third}")
    assert cli("kubeconfig", "--merge", "--name", "bear").code == 0
    assert first.read_text() == OTHERS
    assert not third.exists()
    assert yaml.safe_load(second.read_text())["current-context"] == "bear"


def test_a_link_stays_one(cli, tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text(OTHERS)
    link.symlink_to(real)
    assert cli("kubeconfig", "--merge", "-o", str(link)).code == 0
    assert link.is_symlink()
    assert named(yaml.safe_load(real.read_text()), "clusters")


def test_without_merge_a_file_of_others_is_left_alone(cli, tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text(OTHERS)
    ended = cli("kubeconfig", "-o", str(file))
    assert ended.code == 1
    assert f"{file} also holds old, work; nothing is written\n - give --merge" in ended.err
    assert file.read_text() == OTHERS


@pytest.mark.parametrize("text", ["clusters: [", "- a\n", "clusters: work\n", "users: [a]\n"])
def test_what_is_no_kubeconfig_is_not_added_to(cli, tmp_path, text):
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    ended = cli("kubeconfig", "--merge", "-o", str(file))
    assert ended.code == 2
    assert f"{file} is no kubeconfig that could be added to" in ended.err
    assert file.read_text() == text


def test_a_given_token_is_the_one_that_is_written(cli, control_plane, tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(cli("token", "user", "--name", "dora", "--valid-for", "1h").out)
    ended = cli("kubeconfig", "--token-file", str(file))
    assert ended.code == 4
    assert " - name the port: --address https://127.0.0.1:5682" in ended.err  # she may not read the settings
    monkeypatch.setenv("KOGUMA_DATA_DIR", str(control_plane.data_dir))
    address = f"https://127.0.0.1:{control_plane.tls_port}"
    # Nor may she read meshes, and can still be given what is in them.
    ended = cli("kubeconfig", "--token-file", str(file), "--address", address)
    assert who(yaml.safe_load(ended.out)) == "dora"


def test_a_token_that_does_not_hold_is_not_written(cli, control_plane, tmp_path, monkeypatch):
    token, file = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text("eyJhbGciOiJub25lIn0.e30.x")
    monkeypatch.setenv("KOGUMA_DATA_DIR", str(control_plane.data_dir))
    address = f"https://127.0.0.1:{control_plane.tls_port}"
    ended = cli("kubeconfig", "--token-file", str(token), "--address", address, "-o", str(file))
    assert ended.code == 4
    assert ended.err.startswith(f"error: {address} with the token for the kubeconfig: ")
    assert "eyJ" not in ended.err
    assert not file.exists()


def test_the_namespace_is_that_of_the_mesh_which_must_be_there(cli, control_plane):
    document = {"type": "Mesh", "name": "kc-shop", "skipCreatingInitialPolicies": ["*"]}
    control_plane("PUT", "/meshes/kc-shop", document)
    config = yaml.safe_load(cli("kubeconfig", "-m", "kc-shop").out)
    assert named(config, "contexts")["namespace"] == "mesh-kc-shop"
    ended = cli("kubeconfig", "-m", "kc-shp")
    assert (ended.code, ended.out) == (1, "")
    assert 'there is no Mesh "kc-shp"; did you mean "kc-shop"?' in ended.err
    assert " - choose with --mesh, or name a namespace with --namespace" in ended.err


def test_from_the_https_port_nothing_has_to_be_asked(cli, control_plane, monkeypatch):
    monkeypatch.setenv("KOGUMA_DATA_DIR", str(control_plane.data_dir))
    address = f"https://localhost:{control_plane.tls_port}"
    config = yaml.safe_load(cli("kubeconfig", "--address", address).out)
    assert named(config, "clusters")["server"] == address
    assert who(config) == "mesh-system:admin"


def test_without_a_token_the_next_step_is_named(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("KOGUMA_DATA_DIR", str(tmp_path))
    ended = cli("kubeconfig")
    assert ended.code == 2
    assert ended.err.startswith(
        f"error: a kubeconfig needs a token: none is given, and {tmp_path}/admin-token cannot be read\n"
        " - issue one: `koguma token user"
    )


def test_a_certificate_that_the_ca_does_not_vouch_for_is_found_out_before_anything_is_written(
    cli, tmp_path, control_plane
):
    from datetime import UTC, datetime

    from koguma.identity import files

    files.server_credentials(tmp_path / "elsewhere", (), datetime.now(UTC))
    file = tmp_path / "kubeconfig"
    wrong = str(tmp_path / "elsewhere" / "ca.pem")
    ended = cli("kubeconfig", "--ca-cert", wrong, "-o", str(file))
    assert ended.code == 3
    assert f"the certificate of https://127.0.0.1:{control_plane.tls_port}" in ended.err
    assert "`koguma cp run --hostnames NAME`" in ended.err
    assert not file.exists()
    assert cli("kubeconfig", "--ca-cert", str(control_plane.data_dir / "ca.pem")).code == 0


def test_a_server_that_does_not_tell_its_port_is_asked_for_by_address(koguma, fake):
    fake.answer(403, {"title": "Access Denied", "detail": "no"})
    ended = koguma("kubeconfig", "--address", fake.address)
    assert ended.code == 4
    assert " - name the port: --address https://127.0.0.1:5682" in ended.err


def test_merging_into_standard_output_is_wrong_usage(cli):
    ended = cli("kubeconfig", "--merge", "-o", "-")
    assert ended.code == 2
