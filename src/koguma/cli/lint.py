"""`koguma lint`: errors and warnings about files, by the rules of the control plane, without a server."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from koguma.cli import inputs, offline, options, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ExitCode
from koguma.cli.offline import LoadedFiles
from koguma.core import problems
from koguma.core.problems import INVALID, NO_OBJECT, NO_PERMISSION, OUTBOUND_TO_NOWHERE, Problem
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.documents import Document
from koguma.model.violation import Violation

Json = Any

_COLOURS: Final = {"warning": "yellow", "error": "red"}
_PAGE: Final = "docs/lint.md"


class LintFinding(NamedTuple):
    """A problem and its place; `others` are places of the other objects that it is about."""

    source: str
    line: int
    column: int
    severity: str
    code: str
    field: str
    message: str
    others: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The place in the format of editors and CI."""
        return f"{self.source}:{self.line}:{self.column}"


@click.command("lint", cls=options.ReadsFiles)
@options.files
@click.option(
    "--live",
    is_flag=True,
    help="Let what the server holds lie beneath the files, so references resolve; alone, look at all of it.",
)
@click.option("--errors-only", is_flag=True, help="Leave warnings out; they do not count.")
@offline.options
@options.output("json")
@options.connection
def command(
    *,
    files: Sequence[str],
    live: bool,
    errors_only: bool,
    zone: str,
    is_global: bool,
    output: str | None,
    **connection: str | None,
) -> ExitCode:
    """Find what is wrong or odd in files, before they are applied.

    Every finding has a file, a line, a column and a code that docs/lint.md explains. What the server would
    refuse is an error; what it would take and what then would not do what it seems to is a warning. Nothing
    is asked of a server, unless --live is given. With --live and without files, everything that is stored is
    looked at; places are then those in the output of `koguma get -o yaml`.

    Exit code 0: nothing was found. 1: something was. More than 1: an error.
    """
    control_plane = offline.control_plane(zone=zone, is_global=is_global)
    if live:
        with contextlib.closing(options.client(**connection)) as client:
            loaded, n_objects = _live(client, files, control_plane)
    else:
        documents = inputs.read(files, "or --live for everything that the server holds")
        loaded, n_objects = offline.load(documents, control_plane), len(documents)
    shown = [finding for finding in findings(loaded) if not errors_only or finding.severity == "error"]
    _show(shown, n_objects, output)
    unresolved = (NO_OBJECT, NO_PERMISSION, OUTBOUND_TO_NOWHERE)
    if not live and any(finding.code in unresolved for finding in shown):
        terminal.print_stderr("objects that only the server has are known with --live")
    return ExitCode.REFUSED if shown else ExitCode.FINE


def _live(client: ApiClient, files: Sequence[str], default: ControlPlaneInfo) -> tuple[LoadedFiles, int]:
    """The files with the objects of the server beneath; without files, the objects of the server."""
    control_plane = offline.control_plane_of(client, default)
    if not files:
        loaded = offline.load_stored(offline.stored(client), control_plane)
        return loaded, len(loaded.documents)
    documents = inputs.read(files)
    return offline.load(documents, control_plane, list(offline.served(client))), len(documents)


def findings(loaded: LoadedFiles) -> list[LintFinding]:
    """All errors and warnings about the objects of the files, by place."""
    all_findings = [_invalid(document, violation) for document, violation in loaded.violations]
    warnings = {problems.warning(key, text): None for key, text in loaded.warnings}
    now = datetime.now(UTC)
    of_meshes = (problems.of_mesh(loaded.db, mesh, now) for mesh in loaded.meshes)
    warnings |= {problem: None for of_mesh in of_meshes for problem in of_mesh}
    all_findings += [
        _finding(problem, loaded)
        for problem in warnings
        if any(key in loaded.documents for key in problem.objects)
    ]
    return sorted(all_findings)


def _invalid(document: Document, violation: Violation) -> LintFinding:
    line, column = document.position(violation.field)
    return LintFinding(document.source, line, column, "error", INVALID, violation.field, violation.message)


def _finding(problem: Problem, loaded: LoadedFiles) -> LintFinding:
    """The finding, at the first object of the problem that is in a file."""
    first, *rest = (key for key in problem.objects if key in loaded.documents)
    field = problem.path if first == problem.objects[0] else ""
    document = loaded.documents[first]
    line, column = document.position(field)
    others = tuple(f"{inputs.place(loaded.documents[key])}: {key}" for key in rest)
    return LintFinding(
        document.source, line, column, problem.severity, problem.code, field, problem.message, others
    )


def _show(shown: Sequence[LintFinding], n_objects: int, output: str | None) -> None:
    if output == "json":
        from koguma.cli.output import json_text  # noqa: PLC0415 - lines do not need it

        print(json_text({"objects": n_objects, "findings": [_json(finding) for finding in shown]}))
        return
    for line in lines(shown):
        print(line)
    terminal.print_stderr(_summary(shown, n_objects))


def lines(shown: Iterable[LintFinding]) -> Iterator[str]:
    """Findings as lines for humans, and for editors that jump to places."""
    for finding in shown:
        severity = terminal.paint(finding.severity, _COLOURS[finding.severity])
        text = ": ".join(filter(None, (finding.field, terminal.printable(finding.message))))
        yield f"{finding.place}: {severity} {finding.code}: {text}"
        yield from (f"  {other}" for other in finding.others)


def _summary(shown: Sequence[LintFinding], n_objects: int) -> str:
    objects = f"{n_objects} {'object' if n_objects == 1 else 'objects'}"
    if not shown:
        return f"{objects}, nothing found"
    errors = sum(finding.severity == "error" for finding in shown)
    return f"{objects}, errors: {errors}, warnings: {len(shown) - errors}; {_PAGE} explains the codes"


def _json(finding: LintFinding) -> Json:
    return {
        "file": finding.source,
        "line": finding.line,
        "column": finding.column,
        "severity": finding.severity,
        "code": finding.code,
        "field": finding.field,
        "message": finding.message,
        "others": list(finding.others),
        "docs": f"{_PAGE}#{finding.code.lower()}",
    }
