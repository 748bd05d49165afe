"""`koguma get proxies`: the state of each connected proxy and what it rejected, once or at every change."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koguma.cli import tables, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ServerUnreachable

Json = Any

_TITLES: Final = ("NAME", "MESH", "STATE", "REVISION", "LAG", "ENVOY", "CONNECTED")
_ZONE: Final = "ZONE"  # a column on Global alone
_NO_VERSION: Final = "none"  # of what it refused: it never had any
_WIDE: Final = ("INSTANCE", "KRI")
_POLL_SECONDS: Final = 1.0  # connections are not stored objects, so the API has no watch for them
_PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def show(client: ApiClient, names: Sequence[str], mesh: str | None, output: str | None) -> None:
    """Print the proxies of a mesh, or of all; with names, only those."""
    query = [("mesh", mesh)] if mesh else []
    answer = client.get("/_proxies", query).object
    connected, refused = (
        [proxy for proxy in proxies if not names or proxy["name"] in names]
        for proxies in (answer["items"], answer.get("refused") or ())
    )
    if answer.get("warning"):
        terminal.print_stderr(f"warning: {answer['warning']}")
    for name in names:
        if name not in {proxy["name"] for proxy in connected}:
            terminal.print_stderr(f"{name} is not connected to any control plane")
    if output == "json":
        from koguma.cli import output as formats  # noqa: PLC0415 - tables do not need it

        print(formats.json_text({"total": len(connected), "items": connected, "refused": refused}))
        return
    if output == "yaml":
        from koguma.cli import output as formats  # noqa: PLC0415 - tables need no YAML

        print(formats.yaml_stream(connected).rstrip("\n"))
        if refused:
            terminal.print_stderr(f"{len(refused)} more were refused; `koguma get proxies` shows them")
        return
    if output in ("name", "kri"):
        _print(_in_full("", proxy, output) for proxy in connected)
        return
    if not connected:
        terminal.print_stderr(f"no proxies are connected{f' in mesh {mesh}' if mesh else ''}")
    else:
        wide, zones = output == "wide", "zones" in answer
        rows = (_row(proxy, wide=wide, zones=zones) for proxy in connected)
        for line in tables.lines(_titles(wide=wide, zones=zones), rows):
            print(line)
    for line in refusals(connected):
        print(line)
    for line in _refused_lines(refused):
        print(terminal.printable(line))


def _refused_lines(refused: Sequence[Json]) -> Iterator[str]:
    """The proxies that were not admitted, why, and what to do; not as a table, because reasons are long."""
    if refused:
        yield ""
        yield "Refused, so not in the table above:"
    for proxy in refused:
        times = "once" if proxy["count"] == 1 else f"{proxy['count']} times"
        source = f"from {proxy['address']}, {times} since {proxy['since']}"
        place = f"mesh {proxy['mesh']}" if proxy["mesh"] else "zone proxy"
        yield f"  {proxy['name']} ({place}) {source}:"
        yield f"    {proxy['reason']}"
        yield f"    {proxy['hint']}"


def _titles(*, wide: bool, zones: bool) -> tuple[str, ...]:
    titles = (*_TITLES[:1], _ZONE, *_TITLES[1:]) if zones else _TITLES
    return titles + (_WIDE if wide else ())


def _connected(client: ApiClient, names: Sequence[str], mesh: str | None) -> tuple[list[Json], bool]:
    """The proxies, and whether this is Global, which has those of several zones."""
    answer = client.get("/_proxies", [("mesh", mesh)] if mesh else []).object
    return [proxy for proxy in answer["items"] if not names or proxy["name"] in names], "zones" in answer


def watch(client: ApiClient, names: Sequence[str], mesh: str | None, output: str | None) -> None:
    """Print the proxies, then each one that connects, changes or disconnects, until interrupted."""
    wide = output == "wide"
    connected, zones = _connected(client, names, mesh)
    table = tables.TextTable(("EVENT", *_titles(wide=wide, zones=zones)))
    before = _by_instance(connected)
    first = [_event_row("added", proxy, wide=wide, zones=zones) for proxy in before.values()]
    if output in (None, "wide"):
        _print(table.start(first))
        _print(refusals(list(before.values())))
    else:
        _print(_in_full("ADDED", proxy, output) for proxy in before.values())
    while True:
        time.sleep(_POLL_SECONDS)
        now = _by_instance(_poll(client, names, mesh))
        for event, proxy in changes(before, now):
            if output in (None, "wide"):
                _print([table.row(_event_row(event.lower(), proxy, wide=wide, zones=zones))])
                _print(refusals([proxy] if event != "DELETED" else []))
            else:
                _print([_in_full(event, proxy, output)])
        before = now


def changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The events between two polls, proxy by proxy; a growing lag alone is no change."""
    for instance, proxy in now.items():
        old = before.get(instance)
        if old is None:
            yield "ADDED", proxy
        elif _without_lag(old) != _without_lag(proxy):
            yield "MODIFIED", proxy
    yield from (("DELETED", proxy) for instance, proxy in before.items() if instance not in now)


def _without_lag(proxy: Json) -> Json:
    return {name: value for name, value in proxy.items() if name != "behindSeconds"}


def _by_instance(proxies: Sequence[Json]) -> dict[str, Json]:
    return {f"{proxy['kri']} {proxy['instance']}": proxy for proxy in proxies}


def _poll(client: ApiClient, names: Sequence[str], mesh: str | None) -> list[Json]:
    """The proxies; transient failures are retried, as while the control plane restarts."""
    for pause in _PAUSES_SECONDS:
        try:
            return _connected(client, names, mesh)[0]
        except ServerUnreachable as lost:
            terminal.print_stderr(f"{lost.message}; connecting again")
            time.sleep(pause)
    return _connected(client, names, mesh)[0]


def _event_row(event: str, proxy: Json, *, wide: bool, zones: bool) -> tuple[str, ...]:
    return (event, *_row(proxy, wide=wide, zones=zones))


def _in_full(event: str, proxy: Json, output: str) -> str:
    if output == "json":
        return json.dumps({"type": event, "object": proxy}, ensure_ascii=False)
    if output == "yaml":
        from koguma.cli import output as formats  # noqa: PLC0415 - tables need no YAML

        return f"--- # {event.lower()}\n{formats.yaml_text(proxy)}".rstrip("\n")
    return str(proxy["kri"]) if output == "kri" else f"proxy/{proxy['name']}"


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line, flush=True)


def _row(proxy: Json, *, wide: bool, zones: bool) -> tuple[str, ...]:
    lag = proxy["behindSeconds"]
    cells = (
        proxy["name"],
        *((proxy["zone"],) if zones else ()),
        proxy["mesh"] or "-",
        proxy["state"].upper() if proxy["state"] == "nack" else proxy["state"],
        str(proxy["revision"]),
        f"{lag:.1f}s" if lag else "-",
        proxy["envoy"],
        proxy["connectedAt"],
    )
    return (*cells, proxy["instance"], proxy["kri"]) if wide else cells


def refusals(proxies: Sequence[Json]) -> Iterator[str]:
    """What proxies rejected, what could not be built, and inbounds that are not ready; below the table."""
    for proxy in proxies:
        for rejection in proxy["rejections"]:
            yield f"\n{proxy['name']} refused {rejection['type']} {', '.join(rejection['names'])}:"
            yield f"  {rejection['text']}"
        for resource in proxy.get("quarantined") or ():
            by = f" (changed by {', '.join(resource['policies'])})" if resource["policies"] else ""
            held = "refused" if resource["has"] == _NO_VERSION else f"has {resource['has']} of"
            yield f"\n{proxy['name']} {held} {resource['type']} {resource['name']}{by}:"
            yield f"  {resource['text']}"
        for text in proxy.get("notReady") or ():
            yield f"\n{proxy['name']}: {text}"
        for failure in proxy["failures"]:
            yield f"\n{proxy['name']} {_build_failure(failure)}:"
            yield f"  {failure['text']} (asked for by {failure['origin']})"


def _build_failure(failure: Json) -> str:
    """What a proxy has instead of something that could not be built."""
    match failure["type"]:
        case "proxy":
            return "gets nothing new, since its configuration cannot be built"
        case "policy":
            return f"works without a part of what {failure['name']} says"
    resource = f"{failure['type']} {failure['name']}"
    # Control planes of earlier versions do not send `has`.
    return f"keeps its former {resource}" if failure.get("has") != "none" else f"has no {resource}"
