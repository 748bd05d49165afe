"""No address leads to another service soon, whatever is created, deleted and restarted."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from koguma.core import address_history, vips
from koguma.core.address_history import REUSE_AFTER, AddressHistory
from tests.core.destinations import database, stored_external

SMALL = vips.ranges(mesh_external_service="242.0.0.0/29")  # six usable addresses
NAMES = ["a", "b", "c"]
PLANES = st.integers(0, 1)


class Zone(RuleBasedStateMachine):
    """A store with external services, and two control planes that follow it."""

    def __init__(self):
        super().__init__()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.objects = {}
        self.note = "{}"
        self.freed_at = {}  # the truth, which no control plane knows whole
        self.n_created = 0

    @initialize()
    def start(self):
        self.histories = [AddressHistory(self.now), AddressHistory(self.now)]

    @rule(name=st.sampled_from(NAMES), hosts=st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
    def write(self, name, hosts):
        before = self.objects.get(name)
        self.n_created += before is None
        made = stored_external(name, *(f"{host}.{name}" for host in hosts), created=self.n_created % 60)
        self._store(name, msgspec.structs.replace(made, status=before.status if before else None))

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name):
        self._store(name, None)

    @rule(hours=st.sampled_from([1, 11, 24]))
    def wait(self, hours):
        self.now += timedelta(hours=hours)

    @rule(plane=PLANES)
    def restart(self, plane):
        self.histories[plane] = AddressHistory(self.now)

    @rule(plane=PLANES, is_written=st.booleans())
    def settle(self, plane, is_written):
        """Allocate; a control plane may be killed after it noted the addresses and before it used them."""
        db = database(*self.objects.values())
        used = vips.first_used(db, SMALL, address_history.from_store(self.note))
        history = msgspec.structs.replace(self.histories[plane], used=used)
        keys = {resource.key: name for name, resource in self.objects.items()}
        plan = vips.plan(db, keys, SMALL, history, self.now)
        self.note = address_history.stored_form(plan.used)
        for key, addresses in plan.assigned.items() if is_written else ():
            before = self.objects[keys[key]]
            for _, address in set(addresses) - set(vips.stored(before.status)):
                freed_at = self.freed_at.get(address)
                assert freed_at is None or self.now >= freed_at + REUSE_AFTER, address
            listed = [{"ip": address, "hostname": name} for name, address in addresses]
            self._store(keys[key], msgspec.structs.replace(before, status={"vips": listed}))
        free = min(self.now - at for at in [*self.freed_at.values(), history.since]) >= REUSE_AFTER
        assert not (plan.problems and free and self._n_names() <= 6)

    def _n_names(self):
        db = database(*self.objects.values())
        return sum(len(vips.required_names(db, resource.key)) for resource in self.objects.values())

    def _store(self, name, after):
        before = self.objects.pop(name, None)
        if after is not None:
            self.objects[name] = after
        freed = vips.freed(before, after)
        self.freed_at |= dict.fromkeys(freed, self.now)
        self.histories = [history.freed(freed, self.now) for history in self.histories]

    @invariant()
    def nobody_shares_an_address(self):
        addresses = [at for resource in self.objects.values() for _, at in vips.stored(resource.status)]
        assert len(addresses) == len(set(addresses))


TestZone = pytest.mark.property(Zone.TestCase)
