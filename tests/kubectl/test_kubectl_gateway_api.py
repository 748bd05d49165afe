"""The Gateway API with the real kubectl: from a certificate to a Gateway whose status is waited for."""

import re
from pathlib import Path

import pytest

from tests.tls_certificates import certificate, ecdsa_key, pem

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[2] / "docs" / "gateway-api.md"


def test_the_gateway_of_the_guide(kube, tmp_path):
    (tmp_path / "crt").write_text(certificate(ecdsa_key(), "*.shop.example"))
    (tmp_path / "key").write_text(pem(ecdsa_key()))
    files = (f"--cert={tmp_path / 'crt'}", f"--key={tmp_path / 'key'}")
    kube("create", "secret", "tls", "shop-cert", *files)
    text = re.search(r"```yaml\n(apiVersion: .*?kind: Gateway\n.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    written = text.replace("namespace: shop", f"namespace: {kube.namespace}")
    kube("apply", "-f", "-", stdin=written)
    kube("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=written)
    kube("wait", "--for=condition=Accepted", "gateway/edge", "--timeout=20s")
    resolved = "jsonpath={.status.listeners[1].conditions[?(@.type=='ResolvedRefs')].status}"
    assert kube("get", "gtw", "edge", "-o", resolved) == "True"
    assert "gateways" in kube("api-resources", "--api-group=gateway.networking.k8s.io", "-o", "name")
    assert re.search(r"koguma +koguma.io/gateway-controller +True", kube("get", "gc"))
    assert "httproute.gateway.networking.k8s.io/web" in kube("get", "gateway-api", "-o", "name")
    assert "replacePrefixMatch" in kube("explain", "httproute.spec.rules.filters.urlRewrite.path")
    described = kube("describe", "gateway", "edge")
    assert f"kuma.io/service=edge_{kube.namespace}_svc" in described
    refused = kube.refused("patch", "httproute", "web", "--type=merge", "-p", '{"spec":{"hostnames":["*"]}}')
    assert "spec.hostnames[0]" in refused
    kube("delete", "httproute,gateway", "--all")
