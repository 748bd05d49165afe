"""Clients of Kubernetes' Python library, by the file that `koguma kubeconfig` writes."""

import base64
import time
from contextlib import contextmanager

from kubernetes import config

from koguma.cli import kubeconfig_file
from koguma.model.redacted import Redacted


@contextmanager
def connected(plane, token):
    """A client by the file that `koguma kubeconfig` writes."""
    authority = base64.b64encode((plane.data_dir / "ca.pem").read_bytes()).decode()
    address = f"https://127.0.0.1:{plane.tls_port}"
    entry = kubeconfig_file.KubeconfigEntry("koguma", address, authority, Redacted(token), "default")
    created = kubeconfig_file.content({}, entry, keep_current=False)
    connection = config.new_client_from_config_dict(created, persist_config=False)
    yield connection
    pools = connection.rest_client.pool_manager.pools  # a closed client leaves them to the collector
    for key in pools.keys():  # noqa: SIM118 - they cannot be iterated
        pools[key].close()


def left(plane):
    """Return when the server has seen that all clients are gone, so that it stops with nothing open."""
    while plane.plane._http._runner.server.connections:
        time.sleep(0.01)
