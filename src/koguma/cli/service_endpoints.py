"""`koguma get endpoints`: who serves a service, whether they do, and by whose word."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from koguma.cli import kind_lookup, objects, output, tables, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError
from koguma.cli.kind_lookup import KindInfo

Json = Any

KINDS: Final = ("MeshService", "MeshExternalService", "MeshMultiZoneService")
FORMS: Final = (None, "wide", "json", "yaml")
_TITLES: Final = ("PORT", "ENDPOINT", "PROXY", "ZONE", "STATE", "CALLERS", "REQUESTS", "ERRORS")
_WIDE: Final = ("APPLICATION", "SERVICE", "KRI")
_COLOURS: Final = {"healthy": "green", "degraded": "yellow", "unknown": "yellow"}
_NOT_FOUND: Final = 404


def show(client: ApiClient, words: Sequence[str], mesh: str, form: str | None) -> None:
    """Print the endpoints of the named services; a name is looked for among all kinds of services."""
    if not words:
        raise click.UsageError("name a service: `koguma get endpoints SERVICE`")
    if form not in FORMS:
        raise click.UsageError(f"-o {form} is for objects; endpoints are shown as wide, json or yaml")
    services = [service for word in words for service in _fetched(client, word, mesh)]
    if form == "json":
        print(output.json_text(services[0] if len(services) == 1 else {"items": services}))
    elif form == "yaml":
        print(output.yaml_stream(services).rstrip("\n"))
    else:
        for number, service in enumerate(services):
            for line in (*([""] if number else []), *lines(service, wide=form == "wide")):
                print(line)


def _fetched(client: ApiClient, word: str, mesh: str) -> Iterator[Json]:
    """The services of a name, of whatever kind; KIND/NAME means one of that kind."""
    known = kind_lookup.from_server(client)
    kind, slash, name = word.partition("/")
    kinds = [_service_kind(known.find(kind))] if slash else [known.find(each) for each in KINDS]
    missing: ApiError | None = None
    n_found = 0
    for each in kinds:
        try:
            yield client.get(f"{each.path(mesh, name if slash else word)}/_endpoints").object
            n_found += 1
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise error.about(objects.shown(each.name, name if slash else word, mesh)) from None
            missing = missing or error.about(objects.shown(each.name, name if slash else word, mesh))
    if not n_found and missing is not None:
        raise missing


def _service_kind(kind: KindInfo) -> KindInfo:
    if kind.name not in KINDS:
        raise click.UsageError(f"{kind.name} is no service; services are {', '.join(KINDS)}")
    return kind


def lines(service: Json, *, wide: bool = False) -> Iterator[str]:
    """A service: its state and why, its endpoints, what is to be said about each, and who was asked."""
    state = terminal.paint(service["state"], _COLOURS.get(service["state"], "red"))
    name = f"{service['type']} {service['name']} (mesh {service['mesh']})"
    yield f"{name}: {state}: {_text(service['summary'])}"
    yield from (f"  {_text(reason)}" for reason in service["reasons"] if reason not in service["summary"])
    endpoints = service["endpoints"]
    if endpoints:
        yield ""
        titles = _TITLES + (_WIDE if wide else ())
        yield from tables.lines(titles, (_row(each, wide=wide) for each in endpoints))
    for endpoint in endpoints:
        if endpoint["words"]:
            yield ""
            proxy = endpoint["proxy"] or "outside of the mesh"
            yield f"{_text(proxy)} ({_text(endpoint['address'])}): {endpoint['state']}"
            yield from (f"  {word['by']}: {_text(word['text'])}" for word in endpoint["words"])
    yield ""
    yield from asked_lines(service)


def _row(endpoint: Json, *, wide: bool) -> tuple[str, ...]:
    callers = endpoint["callers"]
    cells = (
        endpoint["port"],
        endpoint["address"],
        endpoint["proxy"],
        endpoint["zone"],
        endpoint["state"],
        f"{callers['healthy']}/{callers['asked']}" if callers["asked"] else "",
        str(callers["total"]["requests"]) if callers["asked"] else "",
        str(callers["total"]["errors"]) if callers["asked"] else "",
    )
    return (*cells, endpoint["application"], endpoint["service"], endpoint["kri"]) if wide else cells


def asked_lines(service: Json) -> Iterator[str]:
    """Who was asked, and who did not answer."""
    callers, servers = service["callers"], service["servers"]
    may_call = (
        f"{callers['answered']} of {callers['of']} proxies that may call it (calling: {callers['calling']})"
    )
    serving = f"{servers['answered']} of {servers['of']} connected ones that serve it"
    yield f"answers of {may_call} and {serving}, looked at twice, {service['seconds']:g} s apart"
    for name, reason in dict.fromkeys(
        (each["name"], each["reason"]) for each in (*callers["unanswered"], *servers["unanswered"])
    ):
        yield f"  {_text(name)} did not answer: {_text(reason)}"


def _text(text: str) -> str:
    return terminal.printable(text)
