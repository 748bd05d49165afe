"""Envoy explanation: who set fields of a proxy's Envoy, from a server or from files."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from koguma.cli import explanation, inputs, offline, options, output, terminal
from koguma.cli.failures import CommandFailure
from koguma.model.documents import Document

Json = Any

_VALUE_MAX: Final = 100
_PLURALS: Final = {
    "Dataplane": "dataplanes",
    "ZoneEgress": "zoneegresses",
    "ZoneIngress": "zoneingresses",
}


class Explained(NamedTuple):
    """The answer about a path, and the files' documents by KRI."""

    answer: Json
    documents: Mapping[str, Document]


def show(kind: str, name: str, mesh: str, files: Sequence[str], path: str, flags: dict[str, Any]) -> None:
    """Print who set the fields at a path, for a proxy of that kind; `mesh` is empty for a zone proxy."""
    zone, is_global, form = flags["zone"], flags["is_global"], flags["output"]
    if files:
        explained = _of_files(inputs.read(files), (kind, mesh, name), path, zone=zone, is_global=is_global)
    else:
        connection = {each: flags[each] for each in ("address", "token_file", "ca_file", "context")}
        with contextlib.closing(options.client(**connection)) as client:
            at = options.at_query(flags["at"])
            above = f"/meshes/{quote(mesh, safe='')}" if mesh else ""
            url = f"{above}/{_PLURALS[kind]}/{quote(name, safe='')}/_explain"
            explained = Explained(client.get(url, [("path", path), *at]).object, {})
    if form == "json":
        print(output.json_text(explained.answer))
        return
    for line in _lines(explained):
        print(line)


def _of_files(
    read: Sequence[Document], named: tuple[str, str, str], path: str, *, zone: str, is_global: bool
) -> Explained:
    from koguma.core import meta, world  # noqa: PLC0415 - a server needs none of these
    from koguma.core.build import encoding  # noqa: PLC0415
    from koguma.core.envoy_origins import origins, paths  # noqa: PLC0415
    from koguma.core.plan import consequences  # noqa: PLC0415
    from koguma.envoy import schema  # noqa: PLC0415
    from koguma.envoy.encode import Encoder  # noqa: PLC0415

    control_plane = offline.control_plane(zone=zone, is_global=is_global)
    loaded = offline.require_valid(offline.load(read, control_plane))
    proxy = explanation.proxy_named(loaded.db, *named)
    keys = [resource.key for resource in world.stored(loaded.db)]
    consequences.follow(loaded.db, keys, datetime.now(UTC))
    loaded.db.set(encoding.ENCODER, "envoy", Encoder(schema.load(schema.find_envoy())))
    documents = {meta.kri(loaded.db, key): document for key, document in loaded.documents.items()}
    try:
        return Explained(origins.answered(proxy, paths.parsed(path), loaded.db), documents)
    except paths.NoSuchField as error:
        raise CommandFailure(str(error)) from None


def _lines(explained: Explained) -> Iterator[str]:
    answer = explained.answer
    for resource in answer.get("resources") or ():
        yield terminal.printable(resource)
    fields = answer.get("fields") or ()
    for field in fields:
        yield f"{terminal.paint(terminal.printable(field['path']), 'bold')} = {_text(field['value'])}"
        for origin in field["origins"]:
            yield f"  {_origin(origin, field['origins'], explained.documents)}"
            for loser in origin.get("losers") or ():
                place = _place(loser, explained.documents)
                yield f"  not {_text(loser['value'])} of {loser['kri']}, {place}: {loser['reason']}"


def _origin(origin: Mapping[str, Json], every: Json, documents: Mapping[str, Document]) -> str:
    if origin["by"] == "koguma":
        return terminal.printable(origin["words"])
    if not origin.get("path"):
        others = [each for each in every if each is not origin and each.get("kind") == origin["kind"]]
        return f"set by {origin['kri']}{', and others say the same' if others else ', whatever it sets'}"
    word = "set by" if origin["by"] == "policy" else "follows from"
    return terminal.printable(f"{word} {origin['kri']}, {_place(origin, documents)}")


def _place(origin: Mapping[str, Json], documents: Mapping[str, Document]) -> str:
    document = documents.get(origin["kri"])
    if document is not None:
        return inputs.place(document, origin["path"])
    return f"{origin['path']}, line {origin['line']}"


def _text(value: Json) -> str:
    word = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = terminal.printable(word)
    return shown if len(shown) <= _VALUE_MAX else f"{shown[: _VALUE_MAX - 3]}..."
