"""`koguma can`: whether one may call another, and which rule decides it."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from koguma.cli import inputs, offline, options, output, terminal
from koguma.cli.explain import named
from koguma.cli.explanation import FilesInspect
from koguma.envoy.simulation.traffic import METHOD_WORDS, is_method
from koguma.model import kri

Json = Any

# Beside 1 for errors, so that scripts tell an answer from a failure.
YES: Final = 0
NO: Final = 2
_ALL: Final = 100  # percent
_COLOURS: Final = {"yes": "green", "no": "red", "partly": "yellow", "unknown": "yellow"}
_SETTINGS: Final = ("timeout", "retries", "perTryTimeout", "idleTimeout", "connectTimeout")


@click.command("can")
@click.argument("caller", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--port", default="", help="Port of the service, by name or number; all by default.")
@click.option("--path", default="/", show_default=True, help="Path of the request, with a query if any.")
@click.option("--method", default="GET", show_default=True, help="Method of the request.")
@click.option("--host", default="", help="Host of the request; the name of the service by default.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="Header of the request; repeatable.",
)
@options.mesh
@options.files
@offline.options
@options.output("json")
@options.connection
def command(caller: str, to: str, *, mesh: str, files: Sequence[str], **flags: Any) -> int:
    """Say whether one may call another, and which rule decides it.

    FROM is a service, a Dataplane or a KRI, or `outside` for a client in front of a gateway; TO is a service,
    a gateway, a Dataplane or a KRI. Proxies of FROM that get different answers are told apart. The answer is
    simulated on the configuration that their Envoys get; nothing is sent. On Global the zones of FROM answer.
    With -f the files are asked instead, without a server.

    Exit codes: 0 yes, 2 no (also where only some requests get through, or where it cannot be told), 1 error;
    3 and 4 as for other commands.
    """
    names = ("port", "path", "method", "host", "headers")
    query = {name: flags.pop(name) for name in names}
    pairs = tuple(_header(text) for text in query.pop("headers"))
    zone, is_global, output_format = flags.pop("zone"), flags.pop("is_global"), flags.pop("output")
    if is_global:
        raise click.UsageError("a Global control plane configures no proxies; ask for a zone with --zone")
    if not query["path"].startswith("/"):
        raise click.UsageError("--path must start with a slash")
    if not is_method(query["method"]):
        raise click.UsageError(f'--method {METHOD_WORDS}, not "{query["method"]}"')
    places: FilesInspect | None = None
    if files:
        answer, places = _of_files(files, zone, mesh, (caller, to), query, pairs)
    else:
        with contextlib.closing(options.client(**flags)) as client:
            parameters = [("from", caller), ("to", to), *((n, v) for n, v in query.items() if v)]
            parameters += [("header", f"{name}:{value}") for name, value in pairs]
            answer = client.get(f"/meshes/{quote(mesh, safe='')}/_can", parameters).object
    if output_format == "json":
        print(output.json_text(answer))
    else:
        for line in _lines(answer, places):
            print(line)
    return YES if answer["verdict"] == "yes" else NO


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f'--header must be NAME:VALUE, not "{text}"')
    return name.strip().lower(), value.strip()


def _of_files(
    files: Sequence[str],
    zone: str,
    mesh: str,
    between: tuple[str, str],
    query: dict[str, str],
    headers: tuple[tuple[str, str], ...],
) -> tuple[Json, FilesInspect]:
    from koguma.cli import simulated_mesh  # noqa: PLC0415 - a server's answer needs no simulation here
    from koguma.core.simulation import answers  # noqa: PLC0415 - the same
    from koguma.core.simulation.answers import CallQuestion  # noqa: PLC0415 - the same
    from koguma.envoy.simulation.traffic import SimulatedRequest  # noqa: PLC0415 - the same

    control_plane = offline.control_plane(zone=zone, is_global=False)
    loaded = offline.require_valid(offline.load(inputs.read(files), control_plane))
    simulator = simulated_mesh.simulators(loaded).of(mesh)
    request = SimulatedRequest(query["method"], query["path"], query["host"], headers)
    question = CallQuestion(*between, query["port"], request)
    groups = answers.groups(simulator, question)
    answer = answers.shown(loaded.db, question, groups)
    return answer, FilesInspect(loaded.db, offline.known_kinds(), groups[0].callers[0], loaded.documents)


def _lines(answer: Json, places: FilesInspect | None) -> Iterator[str]:
    verdict = answer["verdict"]
    yield f"{terminal.paint(verdict, _COLOURS[verdict])}: {answer['from']} to {answer['to']}"
    for each in answer.get("unknownZones") or ():
        yield f"  {terminal.paint('unknown', _COLOURS['unknown'])}: {terminal.printable(each['reason'])}"
    has_ports = len({group["port"] for group in answer["groups"]}) > 1
    for group in answer["groups"]:
        if has_ports or len(answer["groups"]) > 1 or group.get("zone"):
            callers = group["callers"]
            more = callers["total"] - len(callers["names"])
            shown = ", ".join(callers["names"]) + (f" and {more} more" if more else "")
            zone = f" in zone {group['zone']}" if group.get("zone") else ""
            yield terminal.printable(f"  {group['verdict']}: {shown}{zone} to {_port(group['port'])}")
        for outcome in group["outcomes"]:
            yield from (f"  {line}" for line in _outcome(outcome, places))


def _outcome(outcome: Json, places: FilesInspect | None) -> Iterator[str]:
    share = "" if outcome["share"] == _ALL else f"{outcome['share']:g} % "
    if outcome["outcome"] == "reached":
        endpoints = ", ".join(outcome.get("endpoints") or ())
        yield f"{share}reaches {_port(outcome.get('destination', ''))} ({endpoints})"
    else:
        status = f", with {outcome['status']}" if outcome.get("status") else ""
        yield f"{share}{outcome['outcome']}{status}"
    yield f"  because {terminal.printable(outcome['reason'])}"
    for origin in outcome.get("decidedBy") or ():
        place = places.place(origin) if places else f"{origin['path']}, line {origin['line']}"
        yield f"  decided by {origin['kri']}, {place}"
    if outcome.get("route") and kri.is_kri(outcome["route"]):
        yield f"  by route {named(outcome['route'])}"
    settings = [f"{name} {outcome[name]}" for name in _SETTINGS if outcome.get(name)]
    if settings:
        yield f"  with {', '.join(settings)}"
    for word in ("mirrors", "limits", "faults", "notes"):
        yield from (
            f"  {word.removesuffix('s')}: {terminal.printable(text)}" for text in outcome.get(word) or ()
        )


def _port(identifier: str) -> str:
    if not kri.is_kri(identifier):
        return identifier or "a service"
    parsed = kri.parse(identifier)
    return f"{named(identifier)}:{parsed.section}" if parsed.section else named(identifier)
