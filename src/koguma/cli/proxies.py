"""`koguma get proxies`: how far each connected proxy is and what it refused, once or at every change."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koguma.cli import tables, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ServerUnreachable

Json = Any

_TITLES: Final = ("NAME", "MESH", "STATE", "REVISION", "LAG", "ENVOY", "CONNECTED")
_WIDE: Final = ("INSTANCE", "KRI")
_LOOK_SECONDS: Final = 1.0  # proxies come and go with their processes, not with writes: there is no stream
_PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def show(client: ApiClient, names: Sequence[str], mesh: str | None, output: str | None) -> None:
    """Print the proxies of a mesh, or of all; with names, only those."""
    query = [("mesh", mesh)] if mesh else []
    answer = client.get("/_proxies", query).object
    chosen, refused = (
        [each for each in found if not names or each["name"] in names]
        for found in (answer["items"], answer.get("refused") or ())
    )
    for name in names:
        if name not in {each["name"] for each in chosen}:
            terminal.print_stderr(f"{name} is not connected to this control plane")
    if output == "json":
        from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for it

        print(form.json_text({"total": len(chosen), "items": chosen, "refused": refused}))
        return
    if output == "yaml":
        from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for YAML

        print(form.yaml_stream(chosen).rstrip("\n"))
        if refused:
            terminal.print_stderr(f"{len(refused)} more were refused; `koguma get proxies` shows them")
        return
    if output in ("name", "kri"):
        _print(_in_full("", each, output) for each in chosen)
        return
    if not chosen:
        terminal.print_stderr(f"no proxies are connected{f' in mesh {mesh}' if mesh else ''}")
    else:
        wide = output == "wide"
        rows = (_row(each, wide=wide) for each in chosen)
        for line in tables.lines(_TITLES + (_WIDE if wide else ()), rows):
            print(line)
    for line in refusals(chosen):
        print(line)
    for line in _refused_lines(refused):
        print(terminal.printable(line))


def _refused_lines(refused: Sequence[Json]) -> Iterator[str]:
    """Who was not let in, why, and what to do; in sentences, since the reasons are long."""
    if refused:
        yield ""
        yield "Refused, so not in the table above:"
    for each in refused:
        times = "once" if each["count"] == 1 else f"{each['count']} times"
        yield f"  {each['name']} (mesh {each['mesh']}) from {each['address']}, {times} since {each['since']}:"
        yield f"    {each['reason']}"
        yield f"    {each['hint']}"


def _connected(client: ApiClient, names: Sequence[str], mesh: str | None) -> list[Json]:
    found = client.get("/_proxies", [("mesh", mesh)] if mesh else []).field("items")
    return [each for each in found if not names or each["name"] in names]


def watch(client: ApiClient, names: Sequence[str], mesh: str | None, output: str | None) -> None:
    """Print the proxies, then each one that comes, changes or goes, until somebody stops it."""
    wide = output == "wide"
    table = tables.TextTable(("EVENT", *_TITLES, *(_WIDE if wide else ())))
    before = _by_instance(_connected(client, names, mesh))
    first = [_event_row("added", each, wide=wide) for each in before.values()]
    if output in (None, "wide"):
        _print(table.start(first))
        _print(refusals(list(before.values())))
    else:
        _print(_in_full("ADDED", each, output) for each in before.values())
    while True:
        time.sleep(_LOOK_SECONDS)
        now = _by_instance(_looked_again(client, names, mesh))
        for event, each in changes(before, now):
            if output in (None, "wide"):
                _print([table.row(_event_row(event.lower(), each, wide=wide))])
                _print(refusals([each] if event != "DELETED" else []))
            else:
                _print([_in_full(event, each, output)])
        before = now


def changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """What happened between two looks, proxy by proxy; how long one is behind is no change of its own."""
    for instance, each in now.items():
        old = before.get(instance)
        if old is None:
            yield "ADDED", each
        elif _lasting(old) != _lasting(each):
            yield "MODIFIED", each
    yield from (("DELETED", each) for instance, each in before.items() if instance not in now)


def _lasting(each: Json) -> Json:
    return {name: value for name, value in each.items() if name != "behindSeconds"}


def _by_instance(found: Sequence[Json]) -> dict[str, Json]:
    return {f"{each['kri']} {each['instance']}": each for each in found}


def _looked_again(client: ApiClient, names: Sequence[str], mesh: str | None) -> list[Json]:
    """The proxies, over passing failures: a control plane that restarts is back soon."""
    for pause in _PAUSES_SECONDS:
        try:
            return _connected(client, names, mesh)
        except ServerUnreachable as lost:
            terminal.print_stderr(f"{lost.message}; connecting again")
            time.sleep(pause)
    return _connected(client, names, mesh)


def _event_row(event: str, each: Json, *, wide: bool) -> tuple[str, ...]:
    return (event, *_row(each, wide=wide))


def _in_full(event: str, each: Json, output: str) -> str:
    if output == "json":
        return json.dumps({"type": event, "object": each}, ensure_ascii=False)
    if output == "yaml":
        from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for YAML

        return f"--- # {event.lower()}\n{form.yaml_text(each)}".rstrip("\n")
    return str(each["kri"]) if output == "kri" else f"proxy/{each['name']}"


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line, flush=True)


def _row(each: Json, *, wide: bool) -> tuple[str, ...]:
    lag = each["behindSeconds"]
    shown = (
        each["name"],
        each["mesh"],
        each["state"].upper() if each["state"] == "nack" else each["state"],
        str(each["revision"]),
        f"{lag:.1f}s" if lag else "-",
        each["envoy"],
        each["connectedAt"],
    )
    return (*shown, each["instance"], each["kri"]) if wide else shown


def refusals(found: Sequence[Json]) -> Iterator[str]:
    """What proxies refused, what could not be made and what takes no calls, in full, below the table."""
    for each in found:
        for rejection in each["rejections"]:
            yield f"\n{each['name']} refused {rejection['type']} {', '.join(rejection['names'])}:"
            yield f"  {rejection['text']}"
        for held in each.get("quarantined") or ():
            by = f" (changed by {', '.join(held['policies'])})" if held["policies"] else ""
            yield f"\n{each['name']} has {held['has']} of {held['type']} {held['name']}{by}:"
            yield f"  {held['text']}"
        for text in each.get("notReady") or ():
            yield f"\n{each['name']}: {text}"
        for failure in each["failures"]:
            yield f"\n{each['name']} {_unbuilt(failure)}:"
            yield f"  {failure['text']} (asked for by {failure['origin']})"


def _unbuilt(failure: Json) -> str:
    """What a proxy has of something that could not be built."""
    match failure["type"]:
        case "proxy":
            return "gets nothing new, since its configuration cannot be built"
        case "policy":
            return f"works without a part of what {failure['name']} says"
    thing = f"{failure['type']} {failure['name']}"
    # Control planes of earlier versions do not say what a proxy has.
    return f"keeps its former {thing}" if failure.get("has") != "none" else f"has no {thing}"
