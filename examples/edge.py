"""The edge of the demo's mesh: a gateway with HTTPS for localhost, and a certificate made on the spot."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFETIME = timedelta(days=1)


def certificate(public: Path) -> str:
    """A certificate for localhost with its key, as a Secret has them; clients trust what is in `public`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koguma demo")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _LIFETIME)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = made.public_bytes(serialization.Encoding.PEM).decode()
    public.write_text(chain)
    form = serialization.PrivateFormat.PKCS8
    return chain + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def documents(port: int, text: str) -> str:
    """A gateway with HTTPS on a port, its certificate as a Secret, a route to `web`, and the permission."""
    tls = {"mode": "TERMINATE", "certificates": [{"secret": "localhost"}]}
    listener = {"name": "https", "port": port, "protocol": "HTTPS", "hostname": "localhost", "tls": tls}
    edge = {"spiffeID": {"type": "Exact", "value": "spiffe://shop/edge"}}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "web"}]},
    }
    every = [
        {"type": "Secret", "name": "localhost", "data": base64.b64encode(text.encode()).decode()},
        {
            "type": "MeshGateway",
            "name": "edge",
            "selectors": [{"match": {"kuma.io/service": "edge"}}],
            "conf": {"listeners": [listener]},
        },
        {
            "type": "MeshHTTPRoute",
            "name": "edge-to-web",
            "spec": {
                "targetRef": {"kind": "MeshGateway", "name": "edge", "sectionName": "https"},
                "to": [{"targetRef": {"kind": "Mesh"}, "rules": [rule]}],
            },
        },
        {
            "type": "MeshTrafficPermission",
            "name": "edge-may-call-web",
            "spec": {
                "targetRef": {"kind": "Dataplane", "labels": {"app": "web"}},
                "rules": [{"default": {"allow": [edge]}}],
            },
        },
    ]
    return "\n---\n".join(json.dumps({"mesh": "shop", **each}) for each in every)
