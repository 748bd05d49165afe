"""`koguma get proxies`: how far each connected proxy is, and what it refused."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from koguma.cli import tables, terminal
from koguma.cli.client import Client

Json = Any

_TITLES: Final = ("NAME", "MESH", "STATE", "REVISION", "LAG", "ENVOY", "CONNECTED")
_WIDE: Final = ("INSTANCE", "KRI")


def show(client: Client, names: Sequence[str], mesh: str | None, output: str | None) -> None:
    """Print the proxies of a mesh, or of all; with names, only those."""
    query = [("mesh", mesh)] if mesh else []
    answer = client.get("/_proxies", query).object
    chosen, refused = (
        [each for each in found if not names or each["name"] in names]
        for found in (answer["items"], answer.get("refused") or ())
    )
    for name in names:
        if name not in {each["name"] for each in chosen}:
            terminal.complain(f"{name} is not connected to this control plane")
    if output == "json":
        from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for it

        print(form.json_text({"total": len(chosen), "items": chosen, "refused": refused}))
        return
    if output == "yaml":
        from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for YAML

        print(form.yaml_stream(chosen).rstrip("\n"))
        if refused:
            terminal.complain(f"{len(refused)} more were refused; `koguma get proxies` shows them")
        return
    if not chosen:
        terminal.complain(f"no proxies are connected{f' in mesh {mesh}' if mesh else ''}")
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
    """What proxies refused and what could not be made, in full, below the table."""
    for each in found:
        for rejection in each["rejections"]:
            yield f"\n{each['name']} refused {rejection['type']} {', '.join(rejection['names'])}:"
            yield f"  {rejection['text']}"
        for held in each.get("quarantined") or ():
            by = f" (changed by {', '.join(held['policies'])})" if held["policies"] else ""
            yield f"\n{each['name']} has {held['has']} of {held['type']} {held['name']}{by}:"
            yield f"  {held['text']}"
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
