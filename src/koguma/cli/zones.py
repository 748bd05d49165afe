"""`koguma get zones`: each zone, whether it is online, how far behind it is, its version, its last error."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from koguma.cli import tables, terminal
from koguma.cli.client import ApiClient, Query

Json = Any

_TITLES: Final = ("NAME", "ENABLED", "ONLINE", "LAG", "VERSION", "LAST ERROR", "AGE")
_WIDE: Final = ("SINCE", "CONTROL PLANE", "GLOBAL", "REFUSED")
_PATH: Final = "/zones"


def show(client: ApiClient, names: Sequence[str], query: Query, *, wide: bool) -> None:
    """Print a table of the zones, or of those with these names."""
    if names:
        zones = [client.get(f"{_PATH}/{quote(name, safe='')}/_overview").object for name in names]
    else:
        zones = list(client.pages(f"{_PATH}/_overview", query))
    if not zones:
        terminal.print_stderr("no zones")
        return
    now = datetime.now(UTC)
    titles = _TITLES + (_WIDE if wide else ())
    for line in tables.lines(titles, (_row(zone, now, wide=wide) for zone in zones)):
        print(line)
    for line in _refusals(zones):
        print(terminal.printable(line))


def _row(zone: Json, now: datetime, *, wide: bool) -> tuple[str, ...]:
    connection = zone.get("connection") or _of_zone(zone)
    versions = connection.get("versions") or {}
    cells = (
        str(zone["name"]),
        "false" if (zone.get("zone") or {}).get("enabled") is False else "true",
        "yes" if connection.get("online") else "no",
        _lag(connection.get("lag")),
        versions.get("zone") or "-",
        _error(connection.get("lastError"), now),
        tables.age(str(zone.get("creationTime") or ""), now),
    )
    if not wide:
        return cells
    subscriptions = (zone.get("zoneInsight") or {}).get("subscriptions") or [{}]
    return (
        *cells,
        connection.get("since") or "-",
        subscriptions[-1].get("zoneInstanceId") or "-",
        subscriptions[-1].get("globalInstanceId") or "-",
        str((connection.get("refused") or {}).get("total", 0)),
    )


def _of_zone(zone: Json) -> Json:
    """What a zone's own control plane says of it: it has no connection of others."""
    open_ = [
        each
        for each in (zone.get("zoneInsight") or {}).get("subscriptions") or ()
        if not each.get("disconnectTime")
    ]
    version = ((open_[-1].get("version") or {}).get("kumaCp") or {}).get("version") if open_ else ""
    return {"online": bool(open_), "versions": {"zone": version}}


def _lag(lag: Json) -> str:
    if not lag or not (lag["changes"] or lag["seconds"]):
        return "-"
    return f"{lag['changes']} ({lag['seconds']:.1f}s)"


def _error(error: Json, now: datetime) -> str:
    return terminal.printable(f"{error['reason']} ({tables.age(error['time'], now)} ago)") if error else "-"


def _refusals(zones: Sequence[Json]) -> Iterator[str]:
    for zone in zones:
        refused = (zone.get("connection") or {}).get("refused") or {}
        if refused.get("total"):
            yield ""
            yield f"{zone['name']}: {refused['total']} objects were refused; see `koguma check`. The first:"
            yield f"  {refused.get('first', '')}"
