"""Inputs: the objects in files, folders and standard input, which still know where they stand.

What the server says about `objects[3].spec.to[0]` is told as `file.yaml:12:7: spec.to[0]`.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from koguma.cli.failures import ApiError, CommandFailure, InvalidParameter
from koguma.model import documents
from koguma.model.documents import BadDocument, Document, Node

SUFFIXES: Final = (".yaml", ".yml", ".json")
_STDIN: Final = "<stdin>"
_OBJECT = re.compile(r"objects\[(\d+)\]\.?")


def read(paths: Sequence[str], instead: str = "") -> tuple[Document, ...]:
    """All objects, in the order given; every file that cannot be read is told at once.

    `instead` is what else a command takes where there are no files.
    """
    if not paths:
        words = "name what to read with -f: a file, a folder, or - for standard input"
        raise click.UsageError(f"{words}; {instead}" if instead else words)
    found: list[Document] = []
    problems: list[str] = []
    for source, data in _sources(paths):
        try:
            found += objects(_loaded(data, source))
        except BadDocument as error:
            problems.append(error.detail)
    if problems:
        raise CommandFailure("what was given cannot be read", tuple(problems))
    if not found:
        raise CommandFailure(f"there are no objects in {', '.join(paths)}")
    return tuple(found)


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
    found = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in SUFFIXES and file.is_file() and not _is_hidden(file.relative_to(path))
    )
    if not found:
        raise click.UsageError(f"{path}: no file here or below ends with {', '.join(SUFFIXES)}")
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _loaded(data: bytes, source: str) -> list[Document]:
    try:
        return documents.load(data, source)
    except BadDocument:
        if not data.lstrip().startswith((b"{", b"[")):
            raise
        try:  # JSON that is no YAML, as when it is indented with tabs; its places are not known
            value = documents.load_json(data, source)
        except BadDocument:
            value = None
        if value is None:
            raise
        return [Document(value, Node(1, 1), source)]


def objects(loaded: Iterable[Document]) -> Iterator[Document]:
    """Single objects; lists, and the `items` of `get -o json` or a Kubernetes List, are taken apart."""
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
    """Where a field stands, as editors and CI read it: `file.yaml:12:7`."""
    line, column = document.place(field)
    return f"{document.source}:{line}:{column}"


def located(read_objects: Sequence[Document], error: ApiError) -> ApiError | CommandFailure:
    """The same refusal, with places in files instead of positions in the request."""
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
