"""Columns: the columns of `koguma get`, by kind."""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from koguma.cli import tables
from koguma.cli.kind_lookup import KindInfo
from koguma.model import columns as kind_columns
from koguma.model.columns import ready_inbounds
from koguma.model.kind import Column as KindColumn

Json = Any
Column = tuple[str, Callable[[Json], str]]

_LABELS: Final = {"ZONE": "kuma.io/zone", "NAMESPACE": "k8s.kuma.io/namespace", "ORIGIN": "kuma.io/origin"}
_ROLE: Final = "kuma.io/policy-role"


def columns(kind: KindInfo, now: datetime, *, wide: bool) -> tuple[Column, ...]:
    """The columns for a kind, from left to right."""
    return tuple(_columns(kind, now, wide=wide))


def _columns(kind: KindInfo, now: datetime, *, wide: bool) -> Iterator[Column]:
    yield "NAME", lambda value: _text(value.get("name"))
    if kind.is_mesh_scoped:
        yield "MESH", lambda value: _text(value.get("mesh"))
    if kind.is_policy:
        yield "TARGET", _target
    yield from _KIND_COLUMNS.get(kind.name, ())
    for column in kind_columns.INSIGHTS.get(kind.name, ()):
        if wide or not column.is_wide:
            yield column.title.upper(), _of_insight(column)
    if wide:
        for title, label in _LABELS.items():
            yield title, _label(label)
        if kind.is_policy:
            yield "ROLE", lambda value: _label(_ROLE)(value) or "system"
    yield "AGE", lambda value: tables.age(_text(value.get("creationTime")), now)
    if wide:
        yield "KRI", lambda value: _text(value.get("kri"))


def _of_insight(column: KindColumn) -> Callable[[Json], str]:
    """The column of a kind of which the fields of the spec stand at the top."""
    return lambda value: _text(column.value(value, None))


def header(shown: Sequence[Column]) -> tuple[str, ...]:
    """The titles."""
    return tuple(title for title, _ in shown)


def row(shown: Sequence[Column], value: Json) -> tuple[str, ...]:
    """The cells of one object; empty where a stored object of an older version lacks a field."""
    return tuple(_cell(cell, value) for _, cell in shown)


def _cell(cell: Callable[[Json], str], value: Json) -> str:
    try:
        return cell(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _text(value: Json) -> str:
    return "" if value is None else str(value)


def _label(name: str) -> Callable[[Json], str]:
    return lambda value: _text((value.get("labels") or {}).get(name))


def _target(value: Json) -> str:
    ref = (value.get("spec") or {}).get("targetRef") or {"kind": "Mesh"}
    name = ref.get("name") or ",".join(
        f"{k}={v}" for k, v in (ref.get("labels") or ref.get("tags") or {}).items()
    )
    section = f":{ref['sectionName']}" if ref.get("sectionName") else ""
    return f"{ref['kind']}{f'/{name}' if name else ''}{section}"


def _mtls(value: Json) -> str:
    return _text((value.get("mtls") or {}).get("enabledBackend")) or "off"


def _address(value: Json) -> str:
    return _text((value.get("networking") or {}).get("address"))


def _ports(value: Json) -> str:
    return ",".join(f"{port.get('name') or port['port']}:{port['port']}" for port in value["spec"]["ports"])


def _size(value: Json) -> str:
    try:
        return f"{len(base64.b64decode(value.get('data') or '', validate=True))}B"
    except binascii.Error:
        return "not base64"


_KIND_COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "Mesh": (("MTLS", _mtls),),
    "Dataplane": (("ADDRESS", _address), ("READY", ready_inbounds)),
    "ZoneIngress": (("ADDRESS", _address),),
    "ZoneEgress": (("ADDRESS", _address),),
    "MeshService": (("PORTS", _ports),),
    "HostnameGenerator": (("TEMPLATE", lambda value: _text(value["spec"].get("template"))),),
    "Secret": (("SIZE", _size),),
    "GlobalSecret": (("SIZE", _size),),
}
