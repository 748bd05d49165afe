"""Whom the mesh believes: the certificates of the CAs of one trust domain.

A proxy accepts another's identity if a MeshTrust of its mesh has a CA for that trust domain. The control
plane makes one for each MeshIdentity that it issues certificates for; write one to trust a CA from elsewhere,
such as another zone's or another mesh's.

```yaml
type: MeshTrust
name: west
mesh: default
spec:
  trustDomain: default.west.mesh.local
  caBundles:
    - type: Pem
      pem:
        value: |
          -----BEGIN CERTIFICATE-----
          MIIBdDCCARugAwIBAgIUEXAMPLEexampleEXAMPLEexample
          -----END CERTIFICATE-----
```
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from koguma.kinds import rules, v1_conversions
from koguma.model import columns
from koguma.model.kind import BOTH_WAYS, Kind, ValidationContext
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation, child, item


class MeshTrustPem(Spec):
    """Certificates as text."""

    value: Annotated[str, doc("One or more certificates in PEM; never a private key.")]


class MeshTrustBundle(Spec):
    """Certificates of one CA."""

    type: Annotated[Literal["Pem"], doc("The format.")]
    pem: Annotated[MeshTrustPem | None, doc("The certificates, with type Pem.")] = None


class MeshTrustOrigin(Spec):
    """What it was made of."""

    kri: Annotated[str | None, doc("Identifier of the MeshIdentity.")] = None


class MeshTrustSpec(Spec):
    """Which trust domain, and its CAs."""

    trust_domain: Annotated[str | None, doc("The trust domain.")] = None
    ca_bundles: Annotated[tuple[MeshTrustBundle, ...] | None, doc("The CAs that it has.")] = None
    origin: Annotated[MeshTrustOrigin | None, doc("What it was made of; `status.origin` is newer.")] = None


class MeshTrustStatus(Spec):
    """Where it comes from."""

    origin: Annotated[MeshTrustOrigin | None, doc("What it was made of.")] = None


_TRUST_DOMAIN_LENGTH_MAX: Final = 253
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\s]+-----END \1-----")


def validate(spec: MeshTrustSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    if not spec.ca_bundles:
        yield Violation("spec.caBundles", rules.NOT_EMPTY_MESSAGE, "required")
    for index, bundle in enumerate(spec.ca_bundles or ()):
        path = child(item("spec.caBundles", index), "pem")
        if bundle.pem is None:
            yield Violation(path, rules.DEFINED_MESSAGE, "required")
        elif not _is_certificate(bundle.pem.value):
            yield Violation(child(path, "value"), "provided certificate has incorrect format", "pem")
    if not spec.trust_domain:
        yield Violation("spec.trustDomain", "trustDomain needs to be defined", "required")
    elif len(spec.trust_domain) > _TRUST_DOMAIN_LENGTH_MAX:
        message = f"must not be longer than {_TRUST_DOMAIN_LENGTH_MAX} characters"
        yield Violation("spec.trustDomain", message, "length")


def _is_certificate(text: str) -> bool:
    """Whether there is a PEM block, and no private key beside it: bundles are shown to everybody."""
    return _PEM.search(text) is not None and "PRIVATE KEY-----" not in text


KIND = Kind(
    name="MeshTrust",
    plural="meshtrusts",
    short="mtrust",
    doc=__doc__,
    spec=MeshTrustSpec,
    columns=columns.MESH_TRUST,
    status=MeshTrustStatus,
    sync=BOTH_WAYS,
    system_namespace_only=True,
    v1=v1_conversions.MESH_TRUST,
    validate=validate,
)
