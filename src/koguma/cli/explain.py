"""`koguma explain`: which policy set a value, at which line, and which policies it won against."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from koguma.cli import (
    envoy_explanation,
    explanation,
    inert_fields,
    inputs,
    kind_lookup,
    offline,
    options,
    output,
    tables,
    terminal,
)
from koguma.cli.explanation import ExplainedField, InspectSource
from koguma.cli.failures import CommandFailure
from koguma.core import request_words
from koguma.model import kri
from koguma.model.nearest import nearest

Json = Any

_VALUE_MAX: Final = 40
_BESIDE_ORIGIN: Final = ("losers", "value", "setByRules", "acts")


class ExplainQuery(NamedTuple):
    """The values to explain; an empty field means all."""

    to: str
    port: str
    route: str
    kind: str
    field: str


@click.group("explain", cls=kind_lookup.OfKinds)
def command() -> None:
    """Say who set a value, where, and who lost."""


@command.command("dataplane")
@click.argument("name")
@click.option("--to", default="", metavar="SERVICE", help="What is called: a name, KIND/NAME or a KRI.")
@click.option("--port", default="", help="Port of the service, by name or number; all by default.")
@click.option("--route", default="", help="Only calls through this route, by name or KRI.")
@click.option("--kind", default="", help="Only values of this kind of policy, such as MeshTimeout.")
@click.option("--field", default="", help="Only this field, such as http.requestTimeout, with all that lost.")
@click.option(
    "--envoy",
    metavar="PATH",
    help="Instead: a field of Envoy's, such as clusters[NAME].connect_timeout, or what is above it.",
)
@options.mesh
@options.files
@offline.options
@options.at
@options.output("json")
@options.connection
def dataplane(name: str, *, mesh: str, files: Sequence[str], **flags: Any) -> None:
    """Say who set the values for a proxy's calls to a service, or a field of its Envoy.

    Without --field: a table of all values. With it: the policy and the line that set it, and each one that
    lost, with the reason. Lines are those of `koguma get -o yaml`. With -f the files are explained instead,
    without a server, and places are those in the files.

    With --envoy: which line of which policy or object set a field of Envoy's configuration and which lost, or
    the part of Koguma that always sets it; of all fields below where PATH is no leaf. A type alone, or an
    empty PATH, lists the resources.
    """
    envoy = flags.pop("envoy")
    if envoy is None and not flags["to"]:
        raise click.UsageError("name what is called with --to, or a field of Envoy with --envoy")
    _check_at(files, flags["at"])
    beside = [f"--{option}" for option in ExplainQuery._fields if flags[option]]
    if envoy is not None and beside:
        raise click.UsageError(f"--envoy stands instead of {', '.join(beside)}")
    if envoy is not None:
        envoy_explanation.show("Dataplane", name, mesh, files, envoy, flags)
        return
    query = ExplainQuery(**{option: flags.pop(option) for option in ExplainQuery._fields})
    control_plane = offline.control_plane(zone=flags.pop("zone"), is_global=flags.pop("is_global"))
    output_format, at = flags.pop("output"), flags.pop("at")
    with contextlib.ExitStack() as stack:
        if files:
            loaded = offline.require_valid(offline.load(inputs.read(files), control_plane))
            proxy = explanation.proxy_named(loaded.db, "Dataplane", mesh, name)
            source: InspectSource = explanation.FilesInspect(
                loaded.db, offline.known_kinds(), proxy, loaded.documents
            )
        else:
            client = stack.enter_context(contextlib.closing(options.client(**flags)))
            source = explanation.ServerInspect(client, mesh, name, options.at_query(at))
        layout = source.layout()
        protocols = explanation.protocols(layout)
        rows = _rows(source, query, layout)
        for line in _lines(source, rows, protocols, query, output_format):
            print(line)
        for reason in inert_fields.reasons(((row.to, row.field) for row in rows), protocols, query.field):
            terminal.print_stderr(f"note: {reason}")


def _of_envoy(command: Callable[..., None]) -> Callable[..., None]:
    """The argument and the options of an explanation of a zone proxy's Envoy."""
    path = click.option(
        "--envoy",
        metavar="PATH",
        required=True,
        help="A field of Envoy's, such as clusters[NAME].connect_timeout, or what is above it.",
    )
    for decorate in (
        options.connection,
        options.output("json"),
        options.at,
        offline.options,
        options.files,
        path,
        click.argument("name"),
    ):
        command = decorate(command)
    return command


@command.command("zoneegress")
@_of_envoy
def zoneegress(name: str, *, envoy: str, files: Sequence[str], **flags: Any) -> None:
    """Say who set a field of the Envoy of a zone egress.

    That is the line of a policy or object of a mesh that it serves, with those that lost, or the part of
    Koguma that always sets it; of all fields below where PATH is no leaf. A type alone, or an empty PATH,
    lists the resources. With -f the files are explained instead, without a server.
    """
    _check_at(files, flags["at"])
    envoy_explanation.show("ZoneEgress", name, "", files, envoy, flags)


@command.command("zoneingress")
@_of_envoy
def zoneingress(name: str, *, envoy: str, files: Sequence[str], **flags: Any) -> None:
    """Say who set a field of the Envoy of a zone ingress.

    That is the line of an object of a mesh that it serves, or the part of Koguma that always sets it; of all
    fields below where PATH is no leaf. A type alone, or an empty PATH, lists the resources. With -f the files
    are explained instead, without a server.
    """
    _check_at(files, flags["at"])
    envoy_explanation.show("ZoneIngress", name, "", files, envoy, flags)


def _check_at(files: Sequence[str], at: str | None) -> None:
    if files and at:
        raise click.UsageError("--at is for what a control plane has stored; files have no history")


def _rows(source: InspectSource, query: ExplainQuery, layout: Json) -> list[ExplainedField]:
    outbounds = explanation.selected_outbounds(layout, query.to, query.port)
    kind = offline.known_kinds().word(query.kind).name if query.kind else ""
    of_kind = [row for row in explanation.rows(source, outbounds, query.route) if kind in ("", row.kind)]
    rows = [row for row in of_kind if explanation.is_of_field(row, query.field)]
    if not rows:
        what = " of ".join(filter(None, (query.field or "anything", kind)))
        through = f" through {query.route}" if query.route else ""
        inactive = ", ".join(explanation.inactive(source, outbounds, kind)) if kind else ""
        if inactive:
            raise CommandFailure(f"{kind} {inactive} is stored, and does not act yet on these calls (KG015)")
        if kind and not _acts(kind):
            raise CommandFailure(f"{kind} is only stored, and does not act yet (KG015)")
        fields = ((outbound, query.field) for outbound in outbounds)
        notes = inert_fields.reasons(fields, explanation.protocols(layout), query.field)
        raise CommandFailure(
            f"no policy sets {what} for these calls{through}{_near(query.field, of_kind)}",
            tuple(f" - {note}" for note in notes),
        )
    return rows


def _acts(kind: str) -> bool:
    policy = offline.known_kinds()[kind].policy
    return policy is None or policy.acts


def _near(field: str, rows: Sequence[ExplainedField]) -> str:
    fields = {word: row.field for row in rows for word in (row.field, row.field.rpartition(".")[2])}
    near = nearest(field, fields) if field else None
    return f'; did you mean "{fields[near]}"?' if near else "; without --field all that is set is shown"


def _lines(
    source: InspectSource,
    rows: Sequence[ExplainedField],
    protocols: Mapping[str, str],
    query: ExplainQuery,
    output_format: str | None,
) -> Iterator[str]:
    if output_format == "json":
        yield output.json_text({"fields": [_json(row, source, protocols) for row in rows]})
        return
    shown = rows if query.route else list(explanation.without_inherited(rows))
    if not query.field:
        yield from _table(shown, source)
        return
    for row in shown:
        also = [other.route for other in rows if other not in shown and explanation.is_same(other, row)]
        yield from _in_full(row, also, source)


def _json(row: ExplainedField, source: InspectSource, protocols: Mapping[str, str]) -> Json:
    origin, *losers = ({**policy, "place": source.place(policy)} for policy in (row.origin, *row.losers))
    return {
        "to": row.to,
        "route": row.route,
        **({"requests": row.requests} if row.requests else {}),
        "kind": row.kind,
        "field": row.field,
        "value": row.value,
        "acts": inert_fields.acts(row.field, protocols.get(row.to, "")) and not row.is_replaced,
        "origin": {name: value for name, value in origin.items() if name not in _BESIDE_ORIGIN},
        **({"setByRules": [*row.instead]} if row.instead else {}),
        "losers": losers,
    }


def _in_full(row: ExplainedField, also: Sequence[str], source: InspectSource) -> Iterator[str]:
    yield f"{row.kind} {terminal.paint(row.field, 'bold')} = {_text(row.value)}"
    through = f" through {named(row.route)}" if row.route else ""
    through += f", also through {', '.join(map(named, also))}" if also else ""
    requests = f" ({terminal.printable(row.requests)})" if row.requests else ""
    yield f"  for calls to {_port(row.to)}{through}{requests}"
    yield f"  set by {row.origin['kri']}, {source.place(row.origin)}"
    for rule in row.instead:
        which = terminal.printable(request_words.of_matches(rule["matches"])) or "all requests"
        yield f"  but {_text(rule['value'])} for {which}: set by {rule['kri']}, {source.place(rule)}"
    if row.is_replaced:
        yield "  it acts on no request: every rule of the route comes instead"
    for loser in row.losers:
        yield f"  not {_text(loser['value'])} of {loser['kri']}, {source.place(loser)}: {loser['reason']}"


def _table(shown: Sequence[ExplainedField], source: InspectSource) -> Iterator[str]:
    """A table, without the columns TO and ROUTE where they would be the same or empty in all rows."""
    header = ["TO", "ROUTE", "KIND", "FIELD", "VALUE", "SET BY", "WHERE", "OVER"]
    is_needed = (len({row.to for row in shown}) > 1, any(row.route for row in shown))
    omitted = [index for index, needed in enumerate(is_needed) if not needed]
    rows = (tuple(_cells(row, source)) for row in shown)
    return tables.lines(_without(header, omitted), (_without(row, omitted) for row in rows))


def _without(cells: Sequence[str], omitted: Sequence[int]) -> Sequence[str]:
    return [cell for index, cell in enumerate(cells) if index not in omitted]


def _cells(row: ExplainedField, source: InspectSource) -> Iterator[str]:
    yield _port(row.to)
    yield named(row.route) if row.route else ""
    yield row.kind
    yield f"{row.field} ({row.requests})" if row.requests else row.field
    value = _text(row.value)
    if row.instead:
        others = ", ".join(dict.fromkeys(_text(rule["value"]) for rule in row.instead))
        value = f"{others} (not {value})" if row.is_replaced else f"{value}, but {others}"
    yield value if len(value) <= _VALUE_MAX else f"{value[: _VALUE_MAX - 3]}..."
    yield named(row.origin["kri"])
    yield source.line(row.origin)
    yield str(len(row.losers)) if row.losers else ""


def named(text: str) -> str:
    """The short name of an object: its name, and its namespace where it has one."""
    parsed = kri.parse(text)
    return f"{parsed.name}.{parsed.namespace}" if parsed.namespace else parsed.name


def _port(text: str) -> str:
    return f"{named(text)}:{kri.parse(text).section}"


def _text(value: Json) -> str:
    return terminal.printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
