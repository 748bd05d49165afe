"""All proxies of one workload, counted.

Proxies that carry the same label `kuma.io/workload` are one workload; the control plane makes a Workload of
that name and keeps its counts. One written by hand is a place for labels and stays when no proxy is left.

```yaml
type: Workload
name: backend
mesh: default
spec: {}
```
"""

from typing import Annotated

from koguma.kinds.status import DataplaneProxies
from koguma.model import columns
from koguma.model.kind import ZONE_TO_GLOBAL, Kind
from koguma.model.schema import Spec, doc


class WorkloadSpec(Spec):
    """Nothing to say: the name is all."""


class WorkloadStatus(Spec):
    """What the control plane knows of the workload."""

    dataplane_proxies: Annotated[DataplaneProxies | None, doc("How many proxies it has.")] = None


KIND = Kind(
    name="Workload",
    plural="workloads",
    short="wl",
    doc=__doc__,
    spec=WorkloadSpec,
    columns=columns.WORKLOAD,
    status=WorkloadStatus,
    sync=ZONE_TO_GLOBAL,
    dns_name=True,  # it equals a value of the label kuma.io/workload, which must be such a name
)
