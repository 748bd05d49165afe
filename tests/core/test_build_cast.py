"""Proxies of one shape have their own pieces out of one cast, and these are the same as made one by one."""

from collections.abc import Iterator
from typing import Any

import pytest
from building import CASES, Case, database, encoder, of, proxies, stored

from koguma.core.build import cast, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.envoy.snapshot import CLUSTER, XdsResource, version_of
from tests import build

NAMES = ["web", "api", "db"]
NODE_METADATA = {name: NodeMetadata(("feature-embedded-dns",), f"/run/{name}", 9901) for name in NAMES}
LIKE_A_MARK = "\ue00000\ue001"


def mesh(*policies: dict[str, Any]) -> Db:
    """Three proxies that differ in their texts only."""
    documents = [build.mesh(), *map(proxy_document, range(len(NAMES))), *policies]
    return database(map(stored, documents), NODE_METADATA)


def proxy_document(number: int) -> dict[str, Any]:
    inbound = build.inbound(NAMES[number], 80, name="main")
    return build.dataplane(NAMES[number], address=f"127.0.1.{number}", inbound=[inbound])


def logging(line: str) -> dict[str, Any]:
    """A policy that logs what arrives, with this line for each."""
    file = {"path": "/tmp/log", "format": {"type": "Plain", "plain": line}}
    rule = {"default": {"backends": [{"type": "File", "file": file}]}}
    return {"type": "MeshAccessLog", "mesh": "default", "name": "log", "spec": {"rules": [rule]}}


def everything(db: Db) -> list[Any]:
    """All that all proxies get, to the last byte, in order."""
    found = [snapshot.of(db, key) for key in proxies(db)]
    pieces = [[(piece, piece.body, piece.needs) for piece in each] for each in found if each]
    return [pieces, [each.failures for each in found if each]]


def one_by_one(db: Db, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The same without casts."""
    with monkeypatch.context() as patched:
        patched.setattr(cast, "marks", lambda _texts: None)
        return everything(db)


@pytest.mark.parametrize("case", CASES, ids=[case.path.stem for case in CASES])
def test_a_cast_changes_no_byte(case: Case, monkeypatch: pytest.MonkeyPatch):
    assert everything(case.database()) == one_by_one(case.database(), monkeypatch)


def test_proxies_that_differ_in_their_texts_share_a_cast():
    db = mesh()
    for name in NAMES:
        assert f"kri_dp_default_east__{name}_main" in of(db, name).of_type(CLUSTER)
    assert db.runs["inbound._cast"] == 1
    assert db.runs["internals._cast"] == 1


@pytest.mark.parametrize(
    ("line", "shown"), [(LIKE_A_MARK, LIKE_A_MARK), ("to %KUMA_DESTINATION_SERVICE%", "to api")]
)
def test_what_policies_say_that_looks_like_a_mark_or_is_a_proxys_own_is_not_cast(
    line: str, shown: str, monkeypatch: pytest.MonkeyPatch
):
    db = mesh(logging(line))
    assert shown.encode() in b"".join(piece.body for piece in of(db, "api"))
    made = everything(db)
    assert db.runs["inbound._cast"] == 0
    assert made == one_by_one(mesh(logging(line)), monkeypatch)


def cluster(name: str, **more: Any) -> XdsResource:
    body = encoder().message("envoy.config.cluster.v3.Cluster", {"name": name, **more})
    return XdsResource(CLUSTER, name, version_of(body), body, ((CLUSTER, name),))


def test_what_is_no_matter_of_texts_alone_has_no_cast():
    def by_length(texts: cast.Texts) -> Iterator[XdsResource]:
        yield cluster(texts[0], connect_timeout=f"{len(texts[0])}s")

    assert cast.made(encoder(), by_length, 1) is None
    found = cast.made(encoder(), lambda texts: [cluster(texts[0])], 1)
    assert found
    (piece,) = found.filled(("web",)) or ()
    assert (piece, piece.needs) == (cluster("web"), ((CLUSTER, "web"),))


def test_a_text_that_cannot_be_written_is_left_to_the_encoder():
    found = cast.made(encoder(), lambda texts: [cluster(texts[0])], 1)
    assert found
    assert found.filled(("\ud800",)) is None
    assert cast.marks(("web", "")) is None
