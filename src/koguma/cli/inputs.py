"""Inputs: the objects in files, folders and standard input, with their places.

An error of the server about `objects[3].spec.to[0]` is printed as `file.yaml:12:7: spec.to[0]`.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from koguma.cli.failures import ApiError, CommandFailure, InvalidParameter
from koguma.model import documents
from koguma.model.documents import BadDocument, Document, SourceNode

SUFFIXES: Final = (".yaml", ".yml", ".json")
TEST: Final = "MeshTest"  # cases for `koguma test`, which lie beside objects and are none
_STDIN: Final = "<stdin>"
_OBJECT = re.compile(r"objects\[(\d+)\]\.?")


def read(paths: Sequence[str], instead: str = "") -> tuple[Document, ...]:
    """All objects, in the order given; one error names every file that cannot be read.

    Cases for `koguma test` are left out. `instead` is the alternative to files that the command has, for the
    error where there are none.
    """
    if not paths:
        message = "name what to read with -f: a file, a folder, or - for standard input"
        raise click.UsageError(f"{message}; {instead}" if instead else message)
    read_objects = [document for document in read_with_tests(paths) if not is_test(document)]
    if not read_objects:
        raise CommandFailure(f"there are no objects in {', '.join(paths)}")
    return tuple(read_objects)


def is_test(document: Document) -> bool:
    """Whether a document has cases for `koguma test`."""
    return isinstance(document.value, dict) and document.value.get("type") == TEST


def read_with_tests(paths: Sequence[str]) -> tuple[Document, ...]:
    """All objects and all cases for `koguma test`, in the order given."""
    read_objects: list[Document] = []
    problems: list[str] = []
    for source, data in _sources(paths):
        try:
            read_objects += objects(_load(data, source))
        except BadDocument as error:
            problems.append(error.detail)
    if problems:
        raise CommandFailure("what was given cannot be read", tuple(problems))
    return tuple(read_objects)


def _sources(paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if path == "-":
            yield _STDIN, sys.stdin.buffer.read()
            continue
        for file in _files(Path(path)):
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                raise click.UsageError(f"{file}: {error.strerror}") from None


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in SUFFIXES and file.is_file() and not _is_hidden(file.relative_to(path))
    )
    if not files:
        raise click.UsageError(f"{path}: no file here or below ends with {', '.join(SUFFIXES)}")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _load(data: bytes, source: str) -> list[Document]:
    try:
        return documents.load(data, source)
    except BadDocument:
        if not data.lstrip().startswith((b"{", b"[")):
            raise
        try:  # JSON that is not YAML, for example indented with tabs; without places
            value = documents.load_json(data, source)
        except BadDocument:
            value = None
        if value is None:
            raise
        return [Document(value, SourceNode(1, 1), source)]


def objects(loaded: Iterable[Document]) -> Iterator[Document]:
    """Single objects, also those of lists and of `items` in `get -o json` or a Kubernetes List."""
    for document in loaded:
        value, node = document.value, document.node
        if isinstance(value, dict) and "type" not in value and isinstance(value.get("items"), list):
            items = node.children.get("items") if isinstance(node.children, dict) else None
            value, node = value["items"], items or node
        if not isinstance(value, list):
            yield Document(value, node, document.source)
            continue
        places = node.children if isinstance(node.children, list) else [node] * len(value)
        for item, place in zip(value, places, strict=True):
            yield Document(item, place, document.source)


def place(document: Document, field: str = "") -> str:
    """The place of a field, in the format of editors and CI: `file.yaml:12:7`."""
    line, column = document.position(field)
    return f"{document.source}:{line}:{column}"


def located(read_objects: Sequence[Document], error: ApiError) -> ApiError | CommandFailure:
    """The same error, with places in files instead of positions in the request."""
    if not any(_OBJECT.match(field.field) for field in error.fields):
        return error
    lines = tuple(_line(read_objects, field) for field in error.fields)
    return CommandFailure(error.message, lines, error.code)


def _line(read_objects: Sequence[Document], field: InvalidParameter) -> str:
    reason = _OBJECT.sub(lambda match: place(read_objects[int(match[1])]), field.reason)
    match = _OBJECT.match(field.field)
    if match is None:
        return f" - {field.field}: {reason}"
    document, path = read_objects[int(match[1])], field.field[match.end() :]
    return ": ".join(part for part in (place(document, path), path, reason) if part)
