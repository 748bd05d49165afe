"""The Python client as a program in a namespace uses it: with its service account, and the CA beside it."""

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role, config_maps_in
from tests.waiting import until

pytestmark = pytest.mark.slow
SPACE = "shop"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    folder = tmp_path_factory.mktemp("n")
    with LocalControlPlane(folder, store=f"sqlite:///{folder / 'koguma.db'}", feature_gates="") as plane:
        yield plane


@pytest.fixture
def connect(plane, tmp_path):
    """A client with a token that trusts what the ConfigMap of the namespace holds."""
    config_maps = config_maps_in(plane, SPACE)
    opened = []

    def connected(token):
        file = tmp_path / "ca.crt"
        file.write_text(config_maps.get("kube-root-ca.crt")["data"]["ca.crt"])
        settings = client.Configuration(host=f"https://127.0.0.1:{plane.tls_port}")
        settings.ssl_ca_cert = str(file)
        settings.api_key = {"authorization": f"Bearer {token}"}
        opened.append(client.ApiClient(settings))
        return opened[-1]

    yield connected
    for each in opened:
        pools = each.rest_client.pool_manager.pools
        for key in pools.keys():  # noqa: SIM118 - they cannot be iterated
            pools[key].close()


def test_a_program_in_a_namespace_finds_its_account_and_the_ca(plane, connect):
    accounts = config_maps_in(plane, SPACE).other(kind="ServiceAccount")
    config_maps_in(plane, SPACE).put("greeting", "hello")
    until(lambda: accounts.exists("default") and config_maps_in(plane, SPACE).exists("kube-root-ca.crt"))
    admin = client.CoreV1Api(connect((plane.data_dir / "admin-token").read_text().strip()))
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[]))
    token = admin.create_namespaced_service_account_token("default", SPACE, request).status.token
    api = connect(token)
    user = client.AuthenticationV1Api(api).create_self_subject_review({}).status.user_info
    assert user.username == f"system:serviceaccount:{SPACE}:default"
    core = client.CoreV1Api(api)
    with pytest.raises(ApiException) as refused:
        core.read_namespaced_config_map("greeting", SPACE)
    assert refused.value.status == 403
    bind_role(plane, user.username, "view", SPACE)
    assert core.read_namespaced_config_map("greeting", SPACE).data == {"text": "hello"}
    admin.delete_namespaced_service_account("default", SPACE)
    with pytest.raises(ApiException) as ended:
        core.read_namespaced_config_map("greeting", SPACE)
    assert ended.value.status == 401
    until(lambda: accounts.exists("default"), "it is made again")
    with pytest.raises(ApiException) as ended:
        core.read_namespaced_config_map("greeting", SPACE)
    assert ended.value.status == 401
