"""Global under measurement: a control plane with many objects, and the messages that its zones get."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench import sample, wire
from bench.processes import MeasuredControlPlane
from koguma.kinds import KINDS
from koguma.model.kind import Kinds
from koguma.model.resource import Resource
from koguma.policies import POLICIES
from koguma.store import Put, Transaction, open_store
from koguma.sync import mapping
from koguma.sync.protocol import messages, sums
from koguma.sync.protocol.catalog import SyncCatalog
from koguma.sync.protocol.messages import Ack, Entries
from koguma.sync.protocol.publisher import Publisher
from tests.ports import free_port

_BATCH = 1000
KIND = "MeshTimeout"


def policy(number: int) -> Resource:
    """A policy of Global's, as its store has it."""
    name = f"timeout-{number}"
    labels = {"kuma.io/display-name": name, "kuma.io/mesh": sample.MESH, "kuma.io/origin": "global"}
    return Resource(kind=KIND, mesh=sample.MESH, name=name, core_name=name, labels=labels, spec=spec(number))


def spec(number: int) -> dict[str, Any]:
    """A policy for the proxies of one team."""
    selected = {"kind": "Dataplane", "labels": {"app": "storefront", "team": f"team-{number}"}}
    return {**sample.spec(), "targetRef": selected}


async def fill(database: Path, n_objects: int) -> None:
    """Write so many policies into a store that no control plane has opened yet."""
    store = await open_store(f"sqlite:///{database}")
    for first in range(0, n_objects, _BATCH):
        puts = tuple(Put(policy(number)) for number in range(first, min(first + _BATCH, n_objects)))
        await store.write(Transaction(puts, "bench"))
    await store.close()


class MeasuredGlobal(MeasuredControlPlane):
    """A Global control plane on free ports."""

    def __init__(self, folder: Path) -> None:
        self.sync_port = free_port()
        self.folder = folder
        super().__init__(folder, flags=("--mode=global", f"--sync-port={self.sync_port}"))


async def zone_token(top: MeasuredGlobal) -> Path:
    """A file with a token for the control plane of any zone."""
    client = await wire.Client(top.token).connect(top.port)
    body = msgspec.json.encode({"scope": ["cp"], "validFor": "1h"})
    answer = await client.ask("/tokens/zone", "POST", body)
    file = top.folder / "zone.token"
    file.write_bytes(answer.body)
    return file


class MeasuredZone(MeasuredControlPlane):
    """The control plane of a zone, which reaches Global on some port."""

    def __init__(self, folder: Path, name: str, port: int, ca: Path, token: Path) -> None:
        super().__init__(
            folder,
            flags=(
                *("--mode=zone", "--zone-name", name, "--zone-token-file", str(token)),
                *("--global-address", f"grpcs://127.0.0.1:{port}", "--global-ca", str(ca)),
            ),
        )


def first_messages(resources: Iterator[Resource]) -> list[bytes]:
    """What Global sends to a zone that has none of these objects."""
    catalog, contents = SyncCatalog(), {}
    kinds = Kinds((*KINDS, *POLICIES))
    for resource in resources:
        travelling = mapping.downward(resource, kinds[resource.kind])
        assert travelling is not None
        key = travelling.resource.key
        contents[key] = mapping.content(travelling.resource)
        catalog.put(key, sums.content_hash(contents[key]))
    publisher = Publisher(catalog, lambda *_: True, contents.get)
    assert publisher.compare(sums.packed(())) is not None
    publisher.receive_entries(Entries((), is_last=True))
    found = []
    while (batch := publisher.next_batch()) is not None:
        found.append(messages.encoded(msgspec.structs.replace(batch, revision=1)))
        publisher.receive_ack(Ack(batch.number))
    return found
