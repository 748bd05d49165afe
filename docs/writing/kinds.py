"""Kinds: a page for each, and the index of all."""

import sys
from collections.abc import Iterator, Sequence

from docs.writing import fields, tables
from koguma.model.kind import Kind, Kinds


def _first_sentence(kind: Kind) -> str:
    return kind.doc.strip().partition("\n")[0]


def index(kinds: Kinds) -> str:
    """The page that leads to all others."""
    return tables.page("the kinds' own files", _index_lines(kinds))


def _index_lines(kinds: Kinds) -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "All that can be written, set and called, as the code says it."
    yield ""
    yield "- [Settings of a control plane](settings.md)"
    yield "- [The command line](cli.md)"
    yield ""
    yield "Short names begin KRIs and stand for the kind on the command line. A page says which way objects"
    yield "travel between a Global control plane and its zones; travelling itself is planned."
    yield ""
    policies = sorted((k for k in kinds if k.policy), key=lambda k: k.policy.phase if k.policy else 0)
    yield from _kind_list("Policies, in the order in which they act", policies)
    others = [kind for kind in kinds if kind.policy is None]
    yield from _kind_list("What people write", [kind for kind in others if not kind.read_only])
    yield from _kind_list("What the control plane writes", [kind for kind in others if kind.read_only])


def _kind_list(title: str, kinds: Sequence[Kind]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    rows = [
        (
            f"[{kind.name}](kinds/{kind.name}.md)",
            tables.code(kind.short) if kind.short else "",
            tables.code(kind.plural),
            tables.text(_first_sentence(kind)),
        )
        for kind in kinds
    ]
    yield from tables.table(("Kind", "Short", "Path", "What it is"), rows)


def page(kind: Kind) -> str:
    """The page of one kind."""
    return tables.page(_source(kind), _kind_lines(kind))


def _source(kind: Kind) -> str:
    """The file of a kind: a module, or a folder whose own module it is."""
    module = sys.modules[kind.spec.__module__]
    name = f"src/{module.__name__.replace('.', '/')}"
    return f"{name}/__init__.py" if hasattr(module, "__path__") else f"{name}.py"


def _kind_lines(kind: Kind) -> Iterator[str]:
    yield f"# {kind.name}"
    yield ""
    yield kind.doc.strip()
    yield ""
    yield from tables.table(("", ""), _facts(kind))
    yield "## Fields"
    yield ""
    yield from fields.table(kind.spec, "" if kind.inline else "spec")
    for plugin in kind.extensions:
        yield f"## Plugin {plugin.type}"
        yield ""
        yield plugin.doc.strip()
        yield ""
        yield f"It takes ports that speak {', '.join(plugin.protocols)}."
        yield ""
        yield from fields.table(plugin.config, "config")
    if kind.status is not None:
        yield "## Status"
        yield ""
        yield "Kept by the control plane; what is written there is left out."
        yield ""
        yield from fields.table(kind.status, "status")


def _facts(kind: Kind) -> Iterator[tuple[str, str]]:
    base = f"/meshes/{{mesh}}/{kind.plural}" if kind.is_mesh_scoped else f"/{kind.plural}"
    yield "Short name", tables.code(kind.short) if kind.short else "none, so its objects have no KRI"
    yield "Path", tables.code(base)
    if kind.aliases:
        yield "Also called", ", ".join(tables.code(alias) for alias in kind.aliases)
    yield "Scope", kind.scope.value
    yield "Namespaced", _namespaced(kind)
    yield "Written", _written(kind)
    yield "Travels", _travels(kind)
    if kind.admin_only:
        yield "Access", "only who may access secrets; see [access](../../access.md)"
    if kind.policy is not None:
        yield "Policy", _policy(kind)


def _namespaced(kind: Kind) -> str:
    if not kind.namespaced:
        return "no"
    return "yes, the system namespace only" if kind.system_namespace_only else "yes"


def _written(kind: Kind) -> str:
    sync = kind.sync
    if kind.read_only:
        return "by the control plane alone"
    match (sync.provided_by_global, sync.provided_by_zone):
        case (True, True):
            return "on the Global control plane and in zones"
        case (True, False):
            return "on the Global control plane; in a zone while it belongs to no Global"
        case (False, True):
            return "in zones"
        case _:
            return "in a zone while it belongs to no Global"


def _travels(kind: Kind) -> str:
    sync = kind.sync
    ways = []
    if sync.global_to_zones:
        ways.append("from Global to the zones")
    if sync.zone_to_global:
        ways.append("from a zone to Global")
    if sync.across_zones:
        ways.append("producer policies on to the other zones" if kind.policy else "on to the other zones")
    if ways and sync.keeps_name:
        ways.append("under its own name")
    return ", ".join(ways) or "nowhere"


def _policy(kind: Kind) -> str:
    policy = kind.policy
    assert policy is not None
    flags = (("to", policy.has_to), ("from", policy.has_from), ("rules", policy.has_rules))
    lists = ", ".join(tables.code(name) for name, has in flags if has)
    return f"phase {tables.code(policy.phase.name)}; {f'lists {lists}' if lists else 'acts on whole proxies'}"
