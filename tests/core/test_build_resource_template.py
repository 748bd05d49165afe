"""Proxies of one shape get their own resources from one template: the same bytes as built one by one."""

from collections.abc import Iterator
from typing import Any

import pytest
from building import CASES, Case, database, encoder, of, proxies, stored

from koguma.core.build import resource_template, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.envoy.snapshot import CLUSTER, XdsResource, version_of
from tests import build

NAMES = ["web", "api", "db"]
NODE_METADATA = {name: NodeMetadata(("feature-embedded-dns",), f"/run/{name}", 9901) for name in NAMES}
LIKE_A_PLACEHOLDER = "\ue00000\ue001"


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
    resources = [[(resource, resource.body, resource.needs) for resource in each] for each in found if each]
    return [resources, [each.failures for each in found if each]]


def one_by_one(db: Db, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The same without templates."""
    with monkeypatch.context() as patched:
        patched.setattr(resource_template, "placeholders", lambda _texts: None)
        return everything(db)


@pytest.mark.parametrize("case", CASES, ids=[case.path.stem for case in CASES])
def test_a_template_changes_no_byte(case: Case, monkeypatch: pytest.MonkeyPatch):
    assert everything(case.database()) == one_by_one(case.database(), monkeypatch)


def test_proxies_that_differ_in_their_texts_share_a_template():
    db = mesh()
    for name in NAMES:
        assert f"kri_dp_default_east__{name}_main" in of(db, name).of_type(CLUSTER)
    assert db.runs["inbound._templates"] == 1
    assert db.runs["internals._templates"] == 1


@pytest.mark.parametrize(
    ("line", "shown"), [(LIKE_A_PLACEHOLDER, LIKE_A_PLACEHOLDER), ("to %KUMA_DESTINATION_SERVICE%", "to api")]
)
def test_what_policies_say_that_looks_like_a_placeholder_or_is_a_proxys_own_has_no_template(
    line: str, shown: str, monkeypatch: pytest.MonkeyPatch
):
    db = mesh(logging(line))
    assert shown.encode() in b"".join(resource.body for resource in of(db, "api"))
    made = everything(db)
    assert db.runs["inbound._templates"] == 0
    assert made == one_by_one(mesh(logging(line)), monkeypatch)


def cluster(name: str, **more: Any) -> XdsResource:
    body = encoder().message("envoy.config.cluster.v3.Cluster", {"name": name, **more})
    return XdsResource(CLUSTER, name, version_of(body), body, ((CLUSTER, name),))


def test_what_is_no_matter_of_texts_alone_has_no_template():
    def by_length(texts: resource_template.Texts) -> Iterator[XdsResource]:
        yield cluster(texts[0], connect_timeout=f"{len(texts[0])}s")

    assert resource_template.checked(encoder(), by_length, 1) is None
    found = resource_template.checked(encoder(), lambda texts: [cluster(texts[0])], 1)
    assert found
    (resource,) = found.filled(("web",)) or ()
    assert (resource, resource.needs) == (cluster("web"), ((CLUSTER, "web"),))


def test_a_text_that_cannot_be_written_is_left_to_the_encoder():
    found = resource_template.checked(encoder(), lambda texts: [cluster(texts[0])], 1)
    assert found
    assert found.filled(("\ud800",)) is None
    assert resource_template.placeholders(("web", "")) is None
