"""A zone that takes part in the mesh: one control plane with the proxies around it.

The Zone appears by itself when its control plane first connects to the Global one. Write one to switch a
zone off, which hides its services from all other zones until it is switched on again, or to announce a
zone before it connects.

```yaml
type: Zone
name: east-1
enabled: true
```
"""

from typing import Annotated

from koguma.model import columns
from koguma.model.kind import Kind, Scope, Sync
from koguma.model.schema import Spec, doc


class ZoneSpec(Spec):
    """Whether the zone takes part."""

    enabled: Annotated[bool | None, doc("Whether other zones see this one's services; true by default.")] = (
        None
    )


KIND = Kind(
    name="Zone",
    plural="zones",
    short="z",
    doc=__doc__,
    spec=ZoneSpec,
    columns=columns.ZONE,
    scope=Scope.GLOBAL,
    sync=Sync(provided_by_global=True),
    namespaced=False,
    inline=True,
    dns_name=True,
)
