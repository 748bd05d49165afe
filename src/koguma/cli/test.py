"""`koguma test`: cases about requests, evaluated on the objects of files, without a server or proxies."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

import click

from koguma.cli import case_results, offline, options, output, terminal
from koguma.cli.case_results import CaseResult, FailedExpectation
from koguma.cli.failures import CommandFailure

Json = Any

# Beside 1 for errors, so that scripts tell a failed case from a broken file.
PASSED: Final = 0
FAILED: Final = 2


@click.command("test")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--junit", metavar="FILE", help="Also write the results as JUnit XML, for CI.")
@click.option("-q", "--quiet", is_flag=True, help="Show only the cases that fail.")
@click.option(
    "--zone", default="default", show_default=True, help="Zone whose control plane the files are for."
)
@options.output("json")
def command(paths: Sequence[str], *, junit: str | None, quiet: bool, zone: str, output: str | None) -> int:
    """Check what becomes of requests, by cases beside the objects in files.

    PATH is a file or a folder with objects and with cases of `type: MeshTest`. Requests are simulated on the
    configuration that the Envoys would get. A case that fails says what happens instead, who decided or set
    it, and where that is written.

    Exit codes: 0 all cases pass, 2 some fail, 1 error: a file that cannot be read, or an object or a case
    that is not valid.
    """
    from koguma.cli import simulated_mesh  # noqa: PLC0415 - `--help` does not need the engine

    start = perf_counter()
    documents, tests = case_results.read(paths)
    control_plane = offline.control_plane(zone=zone, is_global=False)
    loaded = offline.require_valid(offline.load(documents, control_plane))
    simulators = simulated_mesh.simulators(loaded)
    loaded_seconds = perf_counter() - start
    results = list(case_results.evaluated(loaded, simulators, tests))
    if junit:
        _write(junit, results)
    _show(results, output, quiet=quiet)
    if output is None:
        terminal.print_stderr(_summary(results, loaded_seconds))
    return FAILED if any(result.failures for result in results) else PASSED


def _show(results: Sequence[CaseResult], output_format: str | None, *, quiet: bool) -> None:
    if output_format == "json":
        print(output.json_text({"cases": [_json(result) for result in results]}))
        return
    for result in results:
        if result.failures or not quiet:
            for line in _lines(result):
                print(line)


def _lines(result: CaseResult) -> Iterator[str]:
    verdict = terminal.paint("FAIL", "red") if result.failures else terminal.paint("ok", "green")
    yield f"{verdict} {terminal.printable(f'{result.suite}: {result.name}')}"
    for failure in result.failures:
        yield from (f"  {terminal.printable(line)}" for line in _failure_lines(failure))


def _failure_lines(failure: FailedExpectation) -> Iterator[str]:
    yield f"{failure.place}: {failure.field or 'request'}: expected {failure.expected}, but {failure.actual}"
    yield from (f"  {reason}" for reason in failure.because)


def _summary(results: Sequence[CaseResult], loaded_seconds: float) -> str:
    failed = sum(bool(result.failures) for result in results)
    seconds = sum(result.took.total_seconds() for result in results)
    times = f"loaded in {loaded_seconds:.2f} s, evaluated in {seconds:.3f} s"
    return f"{len(results)} cases, {failed} failed; {times}"


def _json(result: CaseResult) -> Json:
    return {
        "suite": result.suite,
        "name": result.name,
        "place": result.place,
        "passed": not result.failures,
        "seconds": round(result.took.total_seconds(), 6),
        "failures": [
            {
                "place": failure.place,
                "field": failure.field,
                "expected": failure.expected,
                "actual": failure.actual,
                "because": list(failure.because),
            }
            for failure in result.failures
        ],
    }


def _write(path: str, results: Sequence[CaseResult]) -> None:
    try:
        Path(path).write_bytes(tostring(_junit(results), encoding="utf-8", xml_declaration=True))
    except OSError as error:
        raise CommandFailure(f"{path}: cannot write the results: {error.strerror}") from None


def _junit(results: Sequence[CaseResult]) -> Element:
    root = Element("testsuites", name="koguma test")
    suites: dict[str, list[CaseResult]] = {}
    for result in results:
        suites.setdefault(result.suite, []).append(result)
    for name, members in suites.items():
        failed = sum(bool(result.failures) for result in members)
        suite = SubElement(root, "testsuite", name=_xml(name), tests=str(len(members)), failures=str(failed))
        for result in members:
            file, _, _ = result.place.rpartition(":")[0].rpartition(":")
            case = SubElement(
                suite,
                "testcase",
                name=_xml(result.name),
                classname=_xml(name),
                file=_xml(file),
                time=f"{result.took.total_seconds():.6f}",
            )
            if result.failures:
                texts = [line for failure in result.failures for line in _failure_lines(failure)]
                SubElement(case, "failure", message=_xml(texts[0])).text = _xml("\n".join(texts))
    return root


def _xml(text: str) -> str:
    """Text without characters that XML cannot have."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
