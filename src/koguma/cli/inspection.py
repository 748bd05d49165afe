"""Inspection: answers of the Inspect API as tables for people."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koguma.cli import tables, terminal
from koguma.model import kri

Json = Any

_CONF_MAX: Final = 70
_ROUTES: Final = ("MeshHTTPRoute", "MeshTCPRoute")


def section(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table under a title; without rows it says so."""
    listed = list(rows)
    yield ""
    yield f"{title}:" if listed else f"{title}: none"
    if listed:
        yield from (f"  {line}" for line in tables.lines(header, listed))


def proxy(layout: Json, rules: Json) -> Iterator[str]:
    """A proxy: its ports, what acts on it, and what is odd about that."""
    resource = rules["resource"]
    marks = sorted((layout.get("labels") or {}).items())
    yield from tables.pairs(
        (
            ("Dataplane", resource["name"]),
            ("Mesh", resource["mesh"]),
            ("KRI", layout["kri"]),
            ("Labels", ", ".join(f"{name}={value}" for name, value in marks)),
        )
    )
    yield from section("Serves", ("INBOUND", "PORT", "PROTOCOL", "STATE"), map(_inbound, layout["inbounds"]))
    yield from section("Calls", ("SERVICE", "PORT", "PROTOCOL", "KRI"), map(_outbound, layout["outbounds"]))
    acting = (row for kind in rules["rules"] for row in _acting(kind))
    yield from section("Rules", ("KIND", "FOR", "SAYS", "FROM"), acting)
    warnings = [*(layout.get("warnings") or ())]
    warnings += [text for kind in rules["rules"] for text in kind.get("warnings") or ()]
    if warnings:
        yield ""
        yield terminal.paint("Warnings:", "yellow")
        yield from (f"  {terminal.printable(text)}" for text in dict.fromkeys(warnings))


def _inbound(port: Json) -> tuple[str, ...]:
    name = kri.parse(port["kri"]).section if port["kri"] else ""
    return name, str(port["port"]), port["protocol"], port.get("state") or "Ready"


def _outbound(port: Json) -> tuple[str, ...]:
    name = _short(port["kri"]) if port["kri"] else ""
    return name, str(port["port"]), port["protocol"], port["kri"]


def _short(text: str) -> str:
    own = kri.parse(text)
    return f"{own.name}.{own.namespace}" if own.namespace else own.name


def _acting(of_kind: Json) -> Iterator[tuple[str, ...]]:
    """A row for each rule of a kind: what it is for, what comes out, and the policies, weakest first."""
    kind = of_kind["type"]
    for rule in of_kind["toResourceRules"]:
        yield kind, _target_of(rule), _conf(kind, rule["conf"]), _origins(rule["origin"])
    for inbound, rule in _arriving(of_kind):
        yield kind, f"calls to {inbound}{_client(rule)}", _conf(kind, rule["conf"]), _origins(rule["origin"])
    if of_kind.get("proxyRule"):
        rule = of_kind["proxyRule"]
        yield kind, "the proxy", _conf(kind, rule["conf"]), _origins(rule["origin"])


def _arriving(of_kind: Json) -> Iterator[tuple[str, Json]]:
    """Rules for inbounds; `from` of kind Mesh is shown by Kuma as both, here once."""
    newer = {_inbound_name(entry) for entry in of_kind["inboundRules"]}
    for entry in of_kind["inboundRules"]:
        yield from ((_inbound_name(entry), rule) for rule in entry["rules"])
    for entry in of_kind["fromRules"]:
        name = _inbound_name(entry)
        yield from ((name, rule) for rule in entry["rules"] if rule["matchers"] or name not in newer)


def _inbound_name(entry: Json) -> str:
    return str(entry["inbound"].get("name") or entry["inbound"]["port"])


def _client(rule: Json) -> str:
    clients = [f"{one['key']}={one['value']}" for one in rule.get("matchers") or ()]
    clients += [f"{name} {part['value']}" for name, part in (rule.get("match") or {}).items()]
    return f" from {', '.join(clients)}" if clients else ""


def _target_of(rule: Json) -> str:
    meta = rule["resourceMeta"]
    if meta["type"] == "Mesh":
        return "all calls"
    port = f":{rule['resourceSectionName']}" if rule.get("resourceSectionName") else ""
    through = rule.get("destination")
    lead = f" to {through['resourceMeta']['name']}" if through else ""
    return f"{meta['type']} {meta['name']}{port}{lead}"


def _conf(kind: str, conf: Json) -> str:
    first = conf[0] if isinstance(conf, list) and conf else conf
    if kind in _ROUTES and isinstance(first, Mapping) and "rules" in first:
        count = len(first["rules"])
        return f"{count} {'rule' if count == 1 else 'rules'}"
    text = ", ".join(f"{path}={value}" for path, value in _leaves(first))
    return text if len(text) <= _CONF_MAX else f"{text[: _CONF_MAX - 3]}..."


def _leaves(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        at = f"{path}.{name}" if path else name
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, at)
        else:
            yield at, inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)


def _origins(origin: Sequence[Json]) -> str:
    metas = (each.get("resourceMeta", each) for each in origin)
    return ", ".join(dict.fromkeys(meta["name"] for meta in metas))


def target(value: Json) -> str:
    """What a policy's targetRef says."""
    ref = (value.get("spec") or {}).get("targetRef") or {"kind": "Mesh"}
    chosen = ref.get("labels") or ref.get("tags") or ref.get("tag") or {}
    name = ref.get("name") or ",".join(f"{name}={value}" for name, value in chosen.items())
    port = f":{ref['sectionName']}" if ref.get("sectionName") else ""
    types = f" ({', '.join(ref['proxyTypes'])})" if ref.get("proxyTypes") else ""
    return f"{ref.get('kind', 'Mesh')}{f'/{name}' if name else ''}{port}{types}"


def role(marks: Mapping[str, str]) -> str:
    """The policy's role, which is system where no label says otherwise."""
    return marks.get("kuma.io/policy-role", "system")


def ports(value: Json) -> Iterator[tuple[str, ...]]:
    """The ports of a service."""
    for port in (value.get("spec") or {}).get("ports") or ():
        number = str(port.get("port", ""))
        aimed = str(port.get("targetPort") or number)
        yield port.get("name") or number, number, aimed, port.get("appProtocol") or "tcp"


def proxy_cells(meta: Json) -> tuple[str, ...]:
    """A proxy as a row."""
    marks = meta.get("labels") or {}
    place = marks.get("kuma.io/zone", ""), marks.get("k8s.kuma.io/namespace", "")
    return meta["name"], *place, meta.get("kri", "")
