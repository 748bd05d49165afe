"""First start: the objects that a new store begins with, written once, by whoever gets there first."""

import base64
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from koguma.access.token_keys import TokenKeys
from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap, namespaces, transactions
from koguma.application.context import Context
from koguma.core import defaults, identity
from koguma.identity import files, tokens
from koguma.identity.claims import USER, ZONE
from koguma.kube import native, rbac_defaults
from koguma.kube.kinds import NATIVE_KINDS
from koguma.kube.kinds.gateway_api import gateways
from koguma.model.errors import Unauthenticated
from koguma.model.gateway_api.references import CLASS_NAME, CONTROLLER
from koguma.model.redacted import Redacted
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.runtime.settings import Settings
from koguma.store.contract import Ensure, Operation, Put, Transaction

_NATIVE = {kind.name: kind for kind in NATIVE_KINDS}
_AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_OUTSIDE = ("apiVersion", "kind", "metadata")
_CLUSTER_ID = "kuma-cluster-id"
_ADMIN_TOKEN = "admin-user-token"  # noqa: S105 - the name of a secret


async def fill(context: Context, settings: Settings) -> None:
    """Write what a new store needs, in one transaction; a store that has a cluster id is not new."""
    if cluster_id(context):
        return
    documents = list(_documents(context, settings))
    objects = [transactions.control_plane_object(context, document) for document in documents]
    if not settings.skip_default_mesh and not context.control_plane.federated:
        mesh = transactions.control_plane_object(context, {"type": "Mesh", "name": identity.DEFAULT_MESH})
        objects += [mesh, *(put.resource for put in await transactions.mesh_companions(context, mesh))]
    await _write_once(context, objects, "first start")


async def fill_zone(context: Context) -> str:
    """Every start in zone mode makes sure that the zone itself is an object; answers a warning, if any."""
    if context.control_plane.is_global:
        return ""
    others = [zone.name for zone in context.state.listed("Zone") if zone.name != context.control_plane.zone]
    document = {"type": "Zone", "name": context.control_plane.zone, "enabled": True}
    zone = transactions.control_plane_object(context, document)
    if context.state.get(zone.key) is None:
        await _write_once(context, [zone], "start of the zone")
    if not others:
        return ""
    return (
        f'this store also has the zone "{others[0]}"; what was written there can be read and deleted here,'
        f' not changed. Was --zone-name "{context.control_plane.zone}" meant?'
    )


async def fill_kubernetes(context: Context) -> None:
    """Every start makes sure of the roles and namespaces that users of the Kubernetes form expect."""
    places = (identity.DEFAULT_NAMESPACE, context.control_plane.system_namespace)
    wanted = [namespaces.new_namespace(name) for name in places]
    documents = (*rbac_defaults.default_roles(context.kinds), *rbac_defaults.default_bindings())
    wanted += [*(_native(document) for document in documents), gateway_class()]
    operations = [operation for resource in wanted for operation in _brought(context, resource)]
    if operations:
        transaction = Transaction(tuple(operations), SYSTEM, "start")
        await compare_and_swap.written_if_first(context.store, transaction)


def gateway_class() -> Resource:
    """The class of Gateways that this control plane serves."""
    return Resource(
        kind=gateways.GATEWAY_CLASS.stored_as,
        name=CLASS_NAME,
        core_name=CLASS_NAME,
        spec={"controllerName": CONTROLLER, "description": "Gateways that run as proxies of the mesh"},
        status=native.first_status(gateways.GATEWAY_CLASS),
    )


def _brought(context: Context, wanted: Resource) -> Iterator[Operation]:
    """What is missing: the object, or rules that a later version or another package brought."""
    stored = context.state.entry(wanted.key)
    if stored is None:
        yield Ensure(wanted)
    elif isinstance(stored, Resource) and stored.annotations.get(_AUTO_UPDATE) != "false":
        there = stored.spec.get("rules") or []
        new = [rule for rule in wanted.spec.get("rules") or () if rule not in there]
        retired = rbac_defaults.retired_rules(context.kinds) if new else []
        kept = [rule for rule in there if rule not in retired or rule in (wanted.spec.get("rules") or ())]
        if new:
            grown = msgspec.structs.replace(stored, spec={**stored.spec, "rules": [*kept, *new]})
            yield Put(grown, stored.revision)


def _native(document: Json) -> Resource:
    metadata, kind = document["metadata"], _NATIVE[document["kind"]]
    return Resource(
        kind=kind.stored_as,
        name=metadata["name"],
        core_name=metadata["name"],
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        spec={name: value for name, value in document.items() if name not in _OUTSIDE},
    )


async def _write_once(context: Context, objects: list[Resource], reason: str) -> None:
    transaction = Transaction(tuple(Put(resource, 0) for resource in objects), SYSTEM, reason)
    await compare_and_swap.written_if_first(context.store, transaction)


def _documents(context: Context, settings: Settings) -> Iterator[Json]:
    """The first objects; in a zone of a Global its zone token keys and generators come from there."""
    is_federated = context.control_plane.federated
    yield {"type": "Config", "name": _CLUSTER_ID, "config": str(uuid.uuid4())}
    for purpose in (USER,) if is_federated else (USER, ZONE):
        yield {"type": "GlobalSecret", "name": purpose.key_name(1), "data": context.signing_key()}
    if not settings.skip_hostname_generators and not is_federated:
        yield from defaults.hostname_generators(context.control_plane)


def cluster_id(context: Context) -> str:
    """The id that all control planes on this store share; empty before the first start."""
    found = context.state.named("Config", "", _CLUSTER_ID)
    return str(found.spec.get("config", "")) if found else ""


async def admin_token(context: Context, keys: TokenKeys, data_dir: Path, now: datetime) -> str:
    """Keep the admin's token in a file that only we can read, and as a secret; answers a warning, if any."""
    token = files.admin_token(data_dir, keys.ring(USER), now)
    document = {"type": "GlobalSecret", "name": _ADMIN_TOKEN, "data": _encoded(token.text)}
    secret = transactions.control_plane_object(context, document)
    stored = context.state.get(secret.key)
    if stored is None:
        await _write_once(context, [secret], "first start")
    elif not _holds(keys, str(stored.spec.get("data", "")), now):
        renewed = msgspec.structs.replace(stored, spec=secret.spec)
        await context.store.write(Transaction((Put(renewed),), SYSTEM, "the admin's token no longer held"))
    return token.warning


def _holds(keys: TokenKeys, data: str, now: datetime) -> bool:
    try:
        tokens.verify(keys.ring(USER), base64.b64decode(data).decode(), now)
    except (Unauthenticated, ValueError):
        return False
    return True


def _encoded(text: Redacted) -> str:
    return base64.b64encode(text.reveal().encode()).decode()
