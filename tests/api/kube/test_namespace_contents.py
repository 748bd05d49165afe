"""What every namespace has: a service account, and the CA of the API."""

import ssl

import pytest

from koguma.identity import files
from koguma.runtime.clock import now
from tests.control_plane import LocalControlPlane
from tests.kube_client import CORE, KubeClient, accepted, config_maps_in
from tests.waiting import eventually, until

CA = "kube-root-ca.crt"


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    with LocalControlPlane(folder, store=f"sqlite:///{folder / 'koguma.db'}", feature_gates="") as plane:
        yield plane


def certificates(config_maps):
    return config_maps.get(CA)["data"]["ca.crt"]


def spaces_of(plane):
    return KubeClient(plane, "", CORE, "Namespace")


def test_every_namespace_has_a_service_account_and_the_ca_of_the_api(contents):
    accepted(spaces_of(contents).create("team"))
    own = (contents.data_dir / "ca.pem").read_text()
    for name in ("team", "default", "kuma-system", "mesh-default"):
        config_maps = config_maps_in(contents, name)
        accounts = config_maps.other(kind="ServiceAccount")
        until(lambda: accounts.exists("default") and config_maps.exists(CA), name)  # noqa: B023
        assert certificates(config_maps) == own
        ssl.create_default_context(cadata=certificates(config_maps))


def test_what_is_deleted_or_changed_is_made_again(contents):
    config_maps = config_maps_in(contents, "other")
    accounts = config_maps.other(kind="ServiceAccount")
    accepted(config_maps.create("first"))
    until(lambda: accounts.exists("default") and config_maps.exists(CA))
    uid = accounts.get("default")["metadata"]["uid"]
    accepted(accounts.delete("default"))
    until(lambda: accounts.exists("default") and accounts.get("default")["metadata"]["uid"] != uid)
    before = certificates(config_maps)
    accepted(config_maps.patch(CA, {"data": {"ca.crt": "mine"}}))
    eventually(lambda: certificates(config_maps), before)
    accepted(config_maps.delete(CA))
    until(lambda: config_maps.exists(CA))


def test_a_namespace_ends_with_its_contents(contents):
    spaces = spaces_of(contents)
    accepted(spaces.create("short"))
    config_maps = config_maps_in(contents, "short")
    until(lambda: config_maps.exists(CA))
    accepted(spaces.delete("short"))
    until(lambda: not spaces.exists("short"))
    assert not config_maps.exists(CA)


def test_what_two_control_planes_present_is_published_of_both(tmp_path, postgres):
    url = postgres.database()
    given = files.server_credentials(tmp_path / "given", (), now())
    own = {"tls_cert_file": str(given.certificate_path), "tls_key_file": str(given.key_path)}
    with (
        LocalControlPlane(tmp_path / "one", store=url, feature_gates="") as one,
        LocalControlPlane(tmp_path / "two", store=url, feature_gates="", **own),
    ):
        both = {(one.data_dir / "ca.pem").read_text(), given.certificate}
        config_maps = config_maps_in(one, "default")
        until(lambda: config_maps.exists(CA))
        until(lambda: all(ca in certificates(config_maps) for ca in both), "both are there")
        assert certificates(config_maps).count("BEGIN CERTIFICATE") == 2
        poisoned = config_maps_in(one, "default")
        accepted(poisoned.patch(CA, {"data": {"ca.crt": certificates(config_maps) * 2}}))
        until(lambda: certificates(config_maps).count("BEGIN CERTIFICATE") == 2)
