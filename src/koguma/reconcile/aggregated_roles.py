"""Aggregated ClusterRoles: their `rules` are those of the roles that they select, for everybody to read.

Access itself does not wait for this: it asks the selectors at once. Here is what `kubectl get` and
`describe` show, as the aggregation controller of Kubernetes keeps it.
"""

from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.kube import rbac
from koguma.model.resource import Resource
from koguma.reconcile.following import follow
from koguma.store.contract import Put, Transaction
from koguma.store.watch import Watch

_CLUSTER_ROLES: Final = rbac.set_name(rbac.CLUSTER_ROLE)

_log = structlog.get_logger("koguma.aggregated_roles")


class RoleAggregator:
    """Keeps the rules of aggregated ClusterRoles, until cancelled."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def run(self) -> None:
        """Look at all roles, and again whenever one changes."""
        await follow(self._context.store, frozenset({_CLUSTER_ROLES}), self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        while True:
            for role in self._context.state.listed(_CLUSTER_ROLES):
                await self._fill(role)
            await watch.next_batch(None)

    async def _fill(self, role: Resource) -> None:
        if not rbac.is_aggregated(role.spec):
            return
        rules = rbac.aggregated_rules(role, self._context.state.listed(_CLUSTER_ROLES))
        if rules != role.spec.get("rules"):
            filled = msgspec.structs.replace(role, spec={**role.spec, "rules": rules})
            # Somebody else's write is a change, too, after which everything is looked at again.
            transaction = Transaction((Put(filled, role.revision),), SYSTEM, "aggregated rules")
            await compare_and_swap.written_if_first(self._context.store, transaction)
