"""Effects: parts of a policy that have no effect.

Policies that are stored and do not act yet, HTTP settings on a port with another protocol, rules that no
request reaches, and the warnings of the kind itself.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from koguma.core import admission, inbound, items, match, routes, selectors, world
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.lint.problem import (
    ADVICE,
    DEPRECATED_ROUTE,
    INVALID,
    NEVER_MATCHED,
    NOT_BUILT,
    WRONG_PROTOCOL,
    Problem,
)
from koguma.core.policy_set import Policies
from koguma.core.routes import Normalised, NormalMatch
from koguma.model import target_ref
from koguma.model.derived import DerivedResource
from koguma.model.kind import ValidationContext
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item


def advice(db: Db, key: Key) -> Iterator[Problem]:
    """The warnings of the kind itself: deprecated fields, and fields without effect."""
    resource = world.RESOURCES.get(db, key)
    if resource is None or isinstance(resource, DerivedResource):  # a status warns of what was converted
        return
    kind = world.kind_of(db, key.kind)
    context = ValidationContext(world.control_plane(db), key.name, key.mesh, key.namespace, resource.labels)
    try:
        texts = list(admission.kind_warnings(kind, resource.spec, context))
    except Exception as error:  # noqa: BLE001 - a policy of another package must not hide other problems
        message = f"{key} cannot be read as it is stored: {error}; write it again, or mend its policy"
        yield Problem(INVALID, message, (key,), "error")
        return
    yield from (warning(key, text) for text in texts)


def warning(key: Key, text: str) -> Problem:
    """A warning of an object's kind or of admission, as a problem."""
    path = _field(text)
    is_route = path == _KIND_OF_TOP and text.startswith(match.ROUTE_KINDS)
    message = text.removeprefix(path).removeprefix(":").lstrip()
    return Problem(DEPRECATED_ROUTE if is_route else ADVICE, message, (key,), path=path)


_KIND_OF_TOP: Final = "spec.targetRef.kind"


def _field(text: str) -> str:
    """The field that a warning is about; most warnings begin with it."""
    if "'targetRef.kind'" in text:
        return _KIND_OF_TOP
    if text.startswith("'from'"):
        return "spec.from"
    first = text.partition(":")[0].partition(" ")[0]
    return first if first.startswith("spec") else ""


def not_built(db: Db, policy: Key) -> Iterator[Problem]:
    """A policy, or a list in it, that does not reach Envoy yet."""
    record = world.kind_of(db, policy.kind).policy
    if record is None:
        return
    if not record.acts:
        yield _not_built(policy, str(policy), "")
        return
    spec = items.clean_spec(db, policy)
    for name in ("to", "from", "rules"):
        if spec.get(name) and not record.acts_by(name):
            yield _not_built(policy, f"spec.{name} of {policy}", f"spec.{name}")


def _not_built(policy: Key, what: str, path: str) -> Problem:
    message = (
        f"{what} is stored and does not act yet: no proxy is configured by it. Keep it for a version that"
        " does, or delete it; until then traffic goes on as without it"
    )
    return Problem(NOT_BUILT, message, (policy,), path=path)


# Sections of confs that act on these protocols only, at any depth.
_SECTIONS: Final = {"http": world.HTTP_PROTOCOLS, "grpc": ("grpc",)}


def wrong_protocol(db: Db, policy: Key) -> Iterator[Problem]:
    """Entries with settings for a protocol that their destinations or inbounds do not have."""
    for index, targets in enumerate(items.targets(db, policy)):
        ports_by_target = [
            _ports(db, target) for target in targets if target.key and target.kind not in match.ROUTE_KINDS
        ]
        ports = [port for each in ports_by_target for port in each]
        if not ports:
            continue
        entry, described = ItemId(policy, "to", index), ", ".join(str(t.key) for t in targets)
        if policy.kind == target_ref.HTTP_ROUTE:
            yield from _http_route(entry, described, ports)
        else:
            yield from _sections(db, entry, described, ports)
    yield from _inbound(db, policy)


def _ports(db: Db, target: items.Target) -> Sequence[world.Port]:
    destination = world.destination(db, target.key) if target.key else None
    return [port for port in destination.ports if target.section in ("", port.section)] if destination else ()


def _http_route(entry: ItemId, where: str, ports: Sequence[world.Port]) -> Iterator[Problem]:
    if any(port.protocol in world.HTTP_PROTOCOLS for port in ports):
        return
    message = (
        f"{entry.policy} changes nothing on {where}: {_protocols(ports)}; set appProtocol to http,"
        f" http2 or grpc, or write a {target_ref.TCP_ROUTE}"
    )
    yield Problem(WRONG_PROTOCOL, message, (entry.policy,), path=f"{entry.path}.targetRef")


def _sections(db: Db, entry: ItemId, where: str, ports: Sequence[world.Port]) -> Iterator[Problem]:
    entry_item = items.item(db, entry)
    for path, name in _protocol_sections(entry_item.conf):
        if not any(port.protocol in _SECTIONS[name] for port in ports):
            message = (
                f"{path} of {entry.policy} has no effect on {where}: {_protocols(ports)}; set another"
                " protocol there, or take this section away"
            )
            yield Problem(WRONG_PROTOCOL, message, (entry.policy,), path=child(entry_item.path, path))


def _protocols(ports: Sequence[world.Port]) -> str:
    return ", ".join(f"port {port.section} speaks {port.protocol}" for port in ports)


def _protocol_sections(conf: Json, depth: int = 2) -> Iterator[tuple[str, str]]:
    """The protocol sections of a conf, with their paths; in MeshRateLimit they are one level down."""
    for name, value in conf.items() if isinstance(conf, dict) and depth else ():
        if name in _SECTIONS and value:
            yield name, name
        else:
            yield from ((child(name, path), word) for path, word in _protocol_sections(value, depth - 1))


def _inbound(db: Db, policy: Key) -> Iterator[Problem]:
    selector = selectors.selector(db, policy)
    inbound_rules = inbound.entries(db, Policies.of((policy,)))
    entries = sorted(
        {rule.entry for rule in inbound_rules if any(_protocol_sections(items.item(db, rule.entry).conf))}
    )
    if selector is None or selector.by in ("Mesh", "MeshGateway") or not entries:
        return
    inbounds = list(_selected_inbounds(db, selector))
    ports = sorted({world.Port(i.section, i.port, i.protocol): None for i in inbounds}, key=_by_section)
    if ports:
        for entry in entries:
            yield from _sections(db, entry, "the inbounds that it selects", ports)


def _by_section(port: world.Port) -> tuple[str, int, str]:
    return port.section, port.number, port.protocol


def _selected_inbounds(db: Db, selector: selectors.Selector) -> Iterator[world.Inbound]:
    for key in match.proxies(db, selector.policy.mesh):
        proxy, traits = world.proxy(db, key), match.traits(db, key)
        sections = match.selected(selector, traits) if traits else None
        if proxy is not None and sections is not None:
            selected = set(sections)
            yield from (inbound for inbound in proxy.inbounds if inbound.section in selected)


def never_matched(db: Db, policy: Key) -> Iterator[Problem]:
    """Rules of a route whose matches all stand in earlier rules of the same list."""
    spec = items.clean_spec(db, policy)
    record = world.kind_of(db, policy.kind).policy
    if record is not None and record.rules_are_routes:
        yield from _never_matched(policy, spec.get("rules") or (), "spec.rules")
    elif policy.kind == target_ref.HTTP_ROUTE:
        for index, entry in enumerate(spec.get("to") or ()):
            yield from _never_matched(policy, entry.get("rules") or (), f"{item('spec.to', index)}.rules")


def _never_matched(policy: Key, listed: Sequence[Json], path: str) -> Iterator[Problem]:
    seen: dict[NormalMatch, int] = {}  # by which rule
    seen_rules: dict[Normalised, int] = {}
    for index, rule in enumerate(listed):
        matches = routes.normalised(rule.get("matches"))
        first = seen_rules.setdefault(matches, index)
        if first != index:
            yield from _merged_away(policy, listed, path, index, first)
        elif matches and all(each_match in seen for each_match in matches):
            others = ", ".join(item("rules", n) for n in sorted({seen[each_match] for each_match in matches}))
            message = (
                f"no request reaches this rule of {policy}: {others} before it takes them all; remove it"
            )
            yield Problem(NEVER_MATCHED, message, (policy,), path=item(path, index))
        for each_match in matches:
            seen.setdefault(each_match, index)


def _merged_away(policy: Key, listed: Sequence[Json], path: str, index: int, first: int) -> Iterator[Problem]:
    """Rules with equal matches are one rule, in which the earlier one's fields win."""
    fields, first_fields = listed[index].get("default") or {}, listed[first].get("default") or {}
    lost = [name for name in fields if fields[name] is not None and first_fields.get(name) is not None]
    lost = [name for name in lost if fields[name] != first_fields[name]]
    if lost:
        message = (
            f"{' and '.join(lost)} of this rule of {policy} count for nothing: {item('rules', first)} has"
            " the same matches, and the earlier rule wins; write them as one rule"
        )
        yield Problem(NEVER_MATCHED, message, (policy,), path=item(path, index))
