"""Secrets: certificates, keys and tokens, of a mesh or of the whole control plane; and internal settings.

All three travel to zones under their own name, and their payloads leave the history after the watch window.
"""

from typing import Annotated, Final

from koguma.model import columns
from koguma.model.kind import Kind, Scope, Sync
from koguma.model.schema import SecretBase64, Spec, doc

DOC_MESH: Final = """A certificate, a key or another payload that objects of the same mesh refer to by name.

Write one for the CA of `Mesh.mtls`, for the certificate of a gateway, or for TLS to an external service. Only
administrators read and write secrets, since whoever holds a mesh's CA key can be any service in it.

```yaml
type: Secret
name: gateway-certificate
mesh: default
data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t
```
"""

DOC_GLOBAL: Final = """A payload that belongs to no mesh, such as the keys with which tokens are signed.

The control plane makes the ones that it needs at its start: signing keys of user and zone tokens, the
first administrator's token, the CA of Envoy's admin port. Write one to bring a key of your own or to
revoke tokens. Only administrators read and write these.

```yaml
type: GlobalSecret
name: zone-token-revocations
data: MGU4YTM2MmMtNzQ1MS00YjdiLWI2YTctMWE4OTc5ZjkyYTRi
```
"""

DOC_CONFIG: Final = """A setting that the control plane keeps for itself, such as the id of the installation.

Nobody writes these by hand; only the id travels, from the Global control plane to its zones.
"""


class SecretSpec(Spec):
    """The payload."""

    data: Annotated[SecretBase64 | None, doc("The payload, as base64.")] = None


class GlobalSecretSpec(Spec):
    """The payload."""

    data: Annotated[SecretBase64 | None, doc("The payload, as base64.")] = None


class ConfigSpec(Spec):
    """The setting."""

    config: Annotated[str | None, doc("The value.")] = None


SECRET = Kind(
    name="Secret",
    plural="secrets",
    doc=DOC_MESH,
    spec=SecretSpec,
    columns=columns.SECRET,
    sync=Sync(provided_by_global=True, provided_by_zone=True, consumed_by_zone=True, keeps_name=True),
    system_namespace_only=True,
    inline=True,
    admin_only=True,
    short_history=True,
)

GLOBAL_SECRET = Kind(
    name="GlobalSecret",
    plural="globalsecrets",
    aliases=("global-secrets",),
    doc=DOC_GLOBAL,
    spec=GlobalSecretSpec,
    columns=columns.SECRET,
    scope=Scope.GLOBAL,
    sync=Sync(provided_by_global=True, consumed_by_zone=True, keeps_name=True),
    system_namespace_only=True,
    inline=True,
    admin_only=True,
    short_history=True,
)

CONFIG = Kind(
    name="Config",
    plural="configs",
    doc=DOC_CONFIG,
    spec=ConfigSpec,
    scope=Scope.GLOBAL,
    sync=Sync(provided_by_global=True, consumed_by_zone=True, keeps_name=True),
    system_namespace_only=True,
    inline=True,
    read_only=True,
)
