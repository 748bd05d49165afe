"""Inspection: responses of the Inspect API as tables for humans."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koguma.cli import tables, terminal
from koguma.model import kri

Json = Any

_CONF_MAX: Final = 70
_ROUTES_MAX: Final = 5
_HTTP: Final = ("HTTP", "HTTPS")
_ROUTES: Final = ("MeshHTTPRoute", "MeshTCPRoute")


def section(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table under a title; without rows, the title with `none`."""
    all_rows = list(rows)
    yield ""
    yield f"{title}:" if all_rows else f"{title}: none"
    if all_rows:
        yield from (f"  {line}" for line in tables.lines(header, all_rows))


def proxy(layout: Json, rules: Json) -> Iterator[str]:
    """A proxy: its ports, the rules for it, and warnings about them."""
    resource = rules["resource"]
    labels = sorted((layout.get("labels") or {}).items())
    yield from tables.pairs(
        (
            ("Dataplane", resource["name"]),
            ("Mesh", resource["mesh"]),
            ("KRI", layout["kri"]),
            ("Labels", ", ".join(f"{name}={value}" for name, value in labels)),
        )
    )
    yield from section("Serves", ("INBOUND", "PORT", "PROTOCOL", "STATE"), map(_inbound, layout["inbounds"]))
    if "listeners" in layout:
        yield from listeners(layout["listeners"])
    yield from section("Calls", ("SERVICE", "PORT", "PROTOCOL", "KRI"), map(_outbound, layout["outbounds"]))
    rule_rows = (row for kind in rules["rules"] for row in _rule_rows(kind))
    yield from section("Rules", ("KIND", "FOR", "SAYS", "FROM"), rule_rows)
    warnings = [*(layout.get("warnings") or ())]
    warnings += [text for kind in rules["rules"] for text in kind.get("warnings") or ()]
    yield from _warnings(warnings)


def gateway(name: str, mesh: str, layout: Json) -> Iterator[str]:
    """A MeshGateway: who serves it, what its listeners serve, and what they refuse."""
    yield from tables.pairs((("MeshGateway", name), ("Mesh", mesh), ("KRI", layout["kri"])))
    serving = map(proxy_cells, layout["dataplanes"])
    yield from section("Served by", ("NAME", "ZONE", "NAMESPACE", "KRI"), serving)
    yield from listeners(layout["listeners"])
    refused = (
        (_listener_name(each), _short(route["kri"]), route["path"], route["reason"])
        for each in layout["listeners"]
        for route in each["refused"]
    )
    yield from section("Refused", ("LISTENER", "ROUTE", "ENTRY", "WHY"), refused)
    yield from _warnings(layout.get("warnings") or ())


def listeners(served: Json) -> Iterator[str]:
    """The listeners of a gateway, a row for each host."""
    rows = (
        (
            _listener_name(each),
            f"{each['protocol']} {each['port']}",
            host["hostname"],
            _routes(host["routes"]) or ("none: 404" if each["protocol"] in _HTTP else "none: closed"),
            ", ".join(each["policies"]) or "-",
        )
        for each in served
        for host in each["hosts"]
    )
    yield from section("Listeners", ("LISTENER", "PORT", "HOST", "ROUTES", "POLICIES"), rows)


def _routes(shown: Sequence[Json]) -> str:
    """The first routes of a host; one may have thousands, and JSON has them all."""
    first = ", ".join(_short(route["kri"]) for route in shown[:_ROUTES_MAX])
    return f"{first} and {len(shown) - _ROUTES_MAX} more" if len(shown) > _ROUTES_MAX else first


def _listener_name(listener: Json) -> str:
    return str(listener.get("name") or f"{listener['port']}:{listener['hostname']}")


def _warnings(texts: Iterable[str]) -> Iterator[str]:
    warnings = list(dict.fromkeys(texts))
    if warnings:
        yield ""
        yield terminal.paint("Warnings:", "yellow")
        yield from (f"  {terminal.printable(text)}" for text in warnings)


def _inbound(port: Json) -> tuple[str, ...]:
    name = kri.parse(port["kri"]).section if port["kri"] else ""
    return name, str(port["port"]), port["protocol"], port.get("state") or "Ready"


def _outbound(port: Json) -> tuple[str, ...]:
    name = _short(port["kri"]) if port["kri"] else ""
    return name, str(port["port"]), port["protocol"], port["kri"]


def _short(text: str) -> str:
    parsed = kri.parse(text)
    return f"{parsed.name}.{parsed.namespace}" if parsed.namespace else parsed.name


def _rule_rows(of_kind: Json) -> Iterator[tuple[str, ...]]:
    """A row for each rule of a kind: its target, its configuration, and its policies, weakest first."""
    kind = of_kind["type"]
    for rule in of_kind["toResourceRules"]:
        yield kind, _target_of(rule), _conf(kind, rule["conf"]), _origins(rule["origin"])
    for inbound, rule in _inbound_rules(of_kind):
        yield kind, f"calls to {inbound}{_client(rule)}", _conf(kind, rule["conf"]), _origins(rule["origin"])
    if of_kind.get("proxyRule"):
        rule = of_kind["proxyRule"]
        yield kind, "the proxy", _conf(kind, rule["conf"]), _origins(rule["origin"])


def _inbound_rules(of_kind: Json) -> Iterator[tuple[str, Json]]:
    """Rules for inbounds; Kuma's API lists `from` of kind Mesh as both sorts of rules, here it is one row."""
    with_inbound_rules = {_inbound_name(entry) for entry in of_kind["inboundRules"]}
    for entry in of_kind["inboundRules"]:
        yield from ((_inbound_name(entry), rule) for rule in entry["rules"])
    for entry in of_kind["fromRules"]:
        name = _inbound_name(entry)
        is_listed = name in with_inbound_rules
        yield from ((name, rule) for rule in entry["rules"] if rule["matchers"] or not is_listed)


def _inbound_name(entry: Json) -> str:
    return str(entry["inbound"].get("name") or entry["inbound"]["port"])


def _client(rule: Json) -> str:
    clients = [f"{matcher['key']}={matcher['value']}" for matcher in rule.get("matchers") or ()]
    clients += [f"{name} {part['value']}" for name, part in (rule.get("match") or {}).items()]
    return f" from {', '.join(clients)}" if clients else ""


def _target_of(rule: Json) -> str:
    meta = rule["resourceMeta"]
    if meta["type"] == "Mesh":
        return "all calls"
    port = f":{rule['resourceSectionName']}" if rule.get("resourceSectionName") else ""
    destination = rule.get("destination")
    to = f" to {destination['resourceMeta']['name']}" if destination else ""
    return f"{meta['type']} {meta['name']}{port}{to}"


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
    metas = (entry.get("resourceMeta", entry) for entry in origin)
    return ", ".join(dict.fromkeys(meta["name"] for meta in metas))


def target(value: Json) -> str:
    """A policy's targetRef, short."""
    ref = (value.get("spec") or {}).get("targetRef") or {"kind": "Mesh"}
    selector = ref.get("labels") or ref.get("tags") or ref.get("tag") or {}
    name = ref.get("name") or ",".join(f"{name}={value}" for name, value in selector.items())
    port = f":{ref['sectionName']}" if ref.get("sectionName") else ""
    types = f" ({', '.join(ref['proxyTypes'])})" if ref.get("proxyTypes") else ""
    return f"{ref.get('kind', 'Mesh')}{f'/{name}' if name else ''}{port}{types}"


def role(labels: Mapping[str, str]) -> str:
    """The policy's role, which is `system` without the label."""
    return labels.get("kuma.io/policy-role", "system")


def ports(value: Json) -> Iterator[tuple[str, ...]]:
    """The ports of a service."""
    for port in (value.get("spec") or {}).get("ports") or ():
        number = str(port.get("port", ""))
        target_port = str(port.get("targetPort") or number)
        yield port.get("name") or number, number, target_port, port.get("appProtocol") or "tcp"


def proxy_cells(meta: Json) -> tuple[str, ...]:
    """A proxy as a row."""
    labels = meta.get("labels") or {}
    place = labels.get("kuma.io/zone", ""), labels.get("k8s.kuma.io/namespace", "")
    return meta["name"], *place, meta.get("kri", "")
