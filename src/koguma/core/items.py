"""Items: the entries of policies, what they target, how they rank, and their merged conf.

An *item* is one entry of a policy's `to`, `from` or `rules`, or the `default` of a whole-proxy policy.
Its target (a destination, a port of it, a route, the mesh) is read apart from its conf, so that editing a
value resolves no target again.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from koguma.core import match, merge, routes, selectors, world
from koguma.core.incremental import Db, question
from koguma.core.merge import Item
from koguma.core.order import Rank, Tier
from koguma.core.role import PolicyRole
from koguma.core.routes import RouteRule
from koguma.core.world import Pairs, pairs
from koguma.model import target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import item as element

ROUTE_KINDS: Final = match.ROUTE_KINDS


class ItemId(NamedTuple):
    """One entry of a policy: the policy, the list that it stands in, its index."""

    policy: Key
    list: str  # to, from, rules, default
    number: int

    @property
    def path(self) -> str:
        """Where the entry stands in the object."""
        return "spec" if self.list == "default" else element(f"spec.{self.list}", self.number)


Entries = tuple[ItemId, ...]
ByKind = tuple[tuple[str, Entries], ...]


class Target(NamedTuple):
    """What an entry of `to` targets: the mesh (no key), a destination or a port of it, or a route."""

    kind: str
    key: Key | None = None
    section: str = ""


@question
def clean_spec(db: Db, policy: Key) -> Json:
    """A policy's spec with one spelling for each meaning."""
    resource = world.RESOURCES.get(db, policy)
    return world.kind_of(db, policy.kind).clean(resource.spec) if resource else {}


@question
def item(db: Db, entry: ItemId) -> Item:
    """An entry as the merge takes it."""
    return read_item(db, entry)


def read_item(db: Db, entry: ItemId) -> Item:
    """The same without a memo: for who reads many entries once."""
    spec = clean_spec(db, entry.policy)
    record = world.kind_of(db, entry.policy.kind).policy
    if record is not None and record.rules_are_routes:
        return Item(entry.policy, rank(db, entry), "spec", {"rules": spec.get("rules") or []})
    if entry.list == "default":
        return Item(entry.policy, rank(db, entry), "spec.default", spec.get("default") or {})
    written = spec[entry.list][entry.number]
    if entry.policy.kind == target_ref.HTTP_ROUTE:
        conf = {name: written[name] for name in ("rules", "hostnames", "unmatched") if written.get(name)}
        return Item(entry.policy, rank(db, entry), entry.path, conf)
    if entry.policy.kind == target_ref.TCP_ROUTE:
        first = (written.get("rules") or [{}])[0]
        return Item(
            entry.policy, rank(db, entry), f"{entry.path}.rules[0].default", first.get("default") or {}
        )
    return Item(entry.policy, rank(db, entry), f"{entry.path}.default", written.get("default") or {})


@question
def has_tcp_rule(db: Db, entry: ItemId) -> bool:
    """Whether an entry of a MeshTCPRoute has a rule that says where connections go."""
    return bool(clean_spec(db, entry.policy)[entry.list][entry.number].get("rules"))


@question
def rank(db: Db, entry: ItemId) -> Rank:
    """The rank of an entry, by which entries are ordered."""
    selector = selectors.selector(db, entry.policy)
    assert selector is not None, entry
    ref = _refs(db, entry.policy)[entry.number] if entry.list == "to" else None
    to_kind = ref.kind if ref else ""
    tier = Tier.ROUTE if to_kind in ROUTE_KINDS else Tier.SERVICE
    return Rank(
        tier=Tier.OLD_ROUTE if selector.via is not None else tier,
        top_kind=selector.top_kind,
        top_by_name=selector.by == "Dataplane" and bool(selector.name),
        top_section=bool(selector.section),
        origin=selector.origin,
        gateway_tags=len(selector.tags) if selector.top_kind == "MeshGateway" else 0,
        role=selector.role,
        to_kind=to_kind,
        to_section=bool(ref and ref.section),
        display_name=entry.policy.name,
        core_name=selector.core_name,
        index=entry.number,
        created=_created(db, entry.policy) if _is_gateway_route(db, selector) else "",
    )


def _is_gateway_route(db: Db, selector: selectors.Selector) -> bool:
    record = world.kind_of(db, selector.policy.kind).policy
    is_route = selector.policy.kind in ROUTE_KINDS or (record is not None and record.rules_are_routes)
    return is_route and selector.top_kind == "MeshGateway"


def _created(db: Db, policy: Key) -> str:
    resource = world.RESOURCES.get(db, policy)
    return resource.creation_time if resource else ""


class Ref(NamedTuple):
    """A reference of an entry of `to`, as written."""

    kind: str
    name: str = ""
    namespace: str = ""
    labels: Pairs = ()
    section: str = ""


@question
def _refs(db: Db, policy: Key) -> tuple[Ref, ...]:
    return tuple(_ref(entry.get("targetRef") or {}) for entry in clean_spec(db, policy).get("to") or ())


def _ref(ref: Json) -> Ref:
    return Ref(
        kind=ref.get("kind") or "Mesh",
        name=ref.get("name") or "",
        namespace=ref.get("namespace") or "",
        labels=pairs(ref.get("labels")),
        section=ref.get("sectionName") or "",
    )


@question
def targets(db: Db, policy: Key) -> tuple[tuple[Target, ...], ...]:
    """The targets of each entry of a policy's `to`; none for an entry whose reference finds nothing."""
    return tuple(tuple(_targets(db, policy, ref)) for ref in _refs(db, policy))


def _targets(db: Db, policy: Key, ref: Ref) -> Iterator[Target]:
    if ref.kind == "Mesh":
        yield Target("Mesh")
        return
    for key in _referenced(db, policy, ref):
        if ref.kind in ROUTE_KINDS or not ref.section:
            yield Target(ref.kind, key)
            continue
        destination = world.destination(db, key)
        port = destination.port(ref.section) if destination else None
        if port is not None:
            yield Target(ref.kind, key, port.section)


def _referenced(db: Db, policy: Key, ref: Ref) -> tuple[Key, ...]:
    ref_labels = ref.labels
    selector = selectors.selector(db, policy)
    if ref_labels and selector is not None and selector.role is PolicyRole.PRODUCER:
        # A producer policy targets services of its own namespace only (Kuma MADR 054).
        ref_labels = pairs({**dict(ref_labels), "k8s.kuma.io/namespace": policy.namespace})
    namespace = ref.namespace or policy.namespace
    return world.referenced(db, policy.mesh, ref.kind, ref.name, namespace, policy.zone, ref_labels)


@question
def conf(db: Db, entries: tuple[ItemId, ...]) -> Json:
    """The merged conf of entries, given in ascending precedence."""
    return merge.merged([item(db, entry) for entry in entries])


@question
def route_rules(db: Db, entries: tuple[ItemId, ...]) -> tuple[RouteRule, ...]:
    """The merged rules of entries of MeshHTTPRoutes, most important policy first."""
    return routes.merged_rules([item(db, entry) for entry in entries])
