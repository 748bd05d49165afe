"""`koguma inspect`: the policies of a proxy, the proxies of a policy, and the proxies of a service."""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from koguma.cli import envoy_pages, inspection, kind_lookup, objects, options, output, tables
from koguma.cli.client import ApiClient
from koguma.cli.explanation import ServerInspect
from koguma.cli.failures import ApiError
from koguma.cli.kind_lookup import KindInfo
from koguma.cli.objects import ObjectName

Json = Any


@click.group("inspect", cls=kind_lookup.OfKinds)
def command() -> None:
    """Show what acts on a proxy, whom a policy selects, who a service is."""


_CONFIG: Final = "config"
_type = click.option(
    "--type",
    "page",
    type=click.Choice(("policies", _CONFIG, *envoy_pages.PAGES)),
    default="policies",
    show_default=True,
    help="What acts on it; the configuration that the control plane has for it; or what its own Envoy shows,"
    " wherever it runs: its configuration, counters, or clusters with the state of each endpoint.",
)
_include_eds = click.option(
    "--include-eds", is_flag=True, help="With --type config-dump: also the endpoints of clusters."
)


@command.command("dataplane")
@click.argument("name")
@options.mesh
@_type
@_include_eds
@options.at
@options.output("json")
@options.connected
def dataplane(
    client: ApiClient,
    name: str,
    *,
    mesh: str,
    page: str,
    include_eds: bool,
    at: str | None,
    output: str | None,
) -> None:
    """Show a proxy's ports, the policies that act on it and its calls, and what is odd about them."""
    path = f"/meshes/{quote(mesh, safe='')}/dataplanes/{quote(name, safe='')}"
    about = objects.shown("Dataplane", name, mesh)
    if page == _CONFIG:
        _show_config(client, path, about, at)
        return
    if _is_of_envoy(page, at, include_eds=include_eds):
        envoy_pages.show(client, path, about, page, include_eds=include_eds, is_json=output == "json")
        return
    source = ServerInspect(client, mesh, name, options.at_query(at))
    try:
        layout, rules = source.layout(), source.rules()
    except ApiError as error:
        raise error.about(about) from None
    _show({"layout": layout, "rules": rules}, inspection.proxy(layout, rules), output)


@command.command("zoneegress")
@click.argument("name")
@_type
@_include_eds
@options.at
@options.output("json")
@options.connected
def zoneegress(
    client: ApiClient, name: str, *, page: str, include_eds: bool, at: str | None, output: str | None
) -> None:
    """Show the external services that a zone egress serves, and the policies that act on it."""
    path, about = f"/zoneegresses/{quote(name, safe='')}", objects.shown("ZoneEgress", name, "")
    if page == _CONFIG:
        _show_config(client, path, about, at)
        return
    if _is_of_envoy(page, at, include_eds=include_eds):
        envoy_pages.show(client, path, about, page, include_eds=include_eds, is_json=output == "json")
        return
    try:
        services = client.get(f"{path}/_policies", options.at_query(at)).field("services")
    except ApiError as error:
        raise error.about(about) from None
    titles = ("MESH", "SERVICE", "SERVER NAME", "POLICIES ON CALLS THAT ARRIVE", "ON CALLS THAT LEAVE")
    rows = (_served(service) for service in services)
    _show({"services": services}, iter(tables.lines(titles, rows)), output)


def _show_config(client: ApiClient, path: str, about: str, at: str | None) -> None:
    """Print the configuration that the control plane has, or had, for a proxy."""
    try:
        config = client.get(f"{path}/_config", options.at_query(at)).object
    except ApiError as error:
        raise error.about(about) from None
    print(output.json_text(config))


def _is_of_envoy(page: str, at: str | None, *, include_eds: bool) -> bool:
    """Whether the proxy's Envoy is asked; an error where an option has no effect."""
    if at and page in envoy_pages.PAGES:
        raise click.UsageError(
            "an Envoy knows only what it has now; --at goes with --type policies and --type config"
        )
    if include_eds and page != envoy_pages.CONFIG_DUMP:
        raise click.UsageError("--include-eds is for --type config-dump")
    return page in envoy_pages.PAGES


def _served(service: Json) -> tuple[str, ...]:
    acting = (", ".join(each["kind"] for each in service[part]) or "-" for part in ("inbound", "outbound"))
    return (service["mesh"], service["kri"], service["sni"] or "-", *acting)


@command.command("meshgateway")
@click.argument("name")
@options.mesh
@options.at
@options.output("json")
@options.connected
def meshgateway(client: ApiClient, name: str, *, mesh: str, at: str | None, output: str | None) -> None:
    """Show who serves a MeshGateway, its listeners with their hosts and routes, and what they refuse."""
    path = f"/meshes/{quote(mesh, safe='')}/meshgateways/{quote(name, safe='')}/_layout"
    try:
        layout = client.get(path, options.at_query(at)).object
    except ApiError as error:
        raise error.about(objects.shown("MeshGateway", name, mesh)) from None
    _show(layout, inspection.gateway(name, mesh, layout), output)


@command.command("policy")
@click.argument("kind")
@click.argument("name")
@options.mesh
@options.at
@options.output("json")
@options.connected
def policy(client: ApiClient, kind: str, name: str, *, mesh: str, at: str | None, output: str | None) -> None:
    """Show whom a policy selects."""
    kind_info = kind_lookup.from_server(client).find(kind)
    if not kind_info.is_policy:
        raise click.UsageError(f"{kind_info.name} is no policy; `koguma kinds` says which kinds are")
    _inspect(client, ObjectName(kind_info, mesh, name), at, output)


@command.command("service")
@click.argument("name")
@options.mesh
@options.at
@options.output("json")
@options.connected
def service(client: ApiClient, name: str, *, mesh: str, at: str | None, output: str | None) -> None:
    """Show the ports of a MeshService and the proxies that are it."""
    kind = kind_lookup.from_server(client).find("MeshService")
    _inspect(client, ObjectName(kind, mesh, name), at, output)


def _inspect(client: ApiClient, reference: ObjectName, at: str | None, output: str | None) -> None:
    """Show an object, and the proxies that belong to it."""
    query = options.at_query(at)
    (answer,) = objects.fetched(client, [reference], query)
    proxies = list(client.pages(f"{reference.path}/_resources/dataplanes", query))
    lines = _lines(reference.kind, answer.object, proxies)
    _show({"object": answer.object, "dataplanes": proxies}, lines, output)


def _lines(kind: KindInfo, value: Json, proxies: Sequence[Json]) -> Iterator[str]:
    labels = value.get("labels") or {}
    yield from tables.pairs(
        (
            (kind.name, value["name"]),
            ("Mesh", value.get("mesh", "")),
            ("KRI", value.get("kri", "")),
            *(
                (("Target", inspection.target(value)), ("Role", inspection.role(labels)))
                if kind.is_policy
                else ()
            ),
            *(
                ()
                if kind.is_active
                else (("Acts", "not yet: it is stored, and no proxy follows it (KG015)"),)
            ),
        )
    )
    if not kind.is_policy:
        yield from inspection.section(
            "Ports", ("NAME", "PORT", "TARGET", "PROTOCOL"), inspection.ports(value)
        )
    yield from inspection.section(
        "Proxies", ("NAME", "ZONE", "NAMESPACE", "KRI"), map(inspection.proxy_cells, proxies)
    )


def _show(value: Json, lines: Iterator[str], output_format: str | None) -> None:
    for line in [output.json_text(value)] if output_format == "json" else lines:
        print(line)
