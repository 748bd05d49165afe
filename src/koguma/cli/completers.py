"""Completers: what a shell completes for the word that is being typed.

Names of objects, meshes, services and routes come from the server, with a short timeout. Where it does not
answer nothing is completed and no error is printed: a completion must not get in the way of typing.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from koguma.cli import kind_lookup, options

if TYPE_CHECKING:  # completion has to be quick: HTTP and the kinds are imported where they are needed
    from koguma.cli.client import ApiClient
    from koguma.cli.kind_lookup import KindIndex, KindInfo

_TIMEOUT_SECONDS: Final = 1.0
_ITEMS_MAX: Final = 500
_CONNECTION: Final = ("address", "token_file", "ca_file", "context")

Completer = Callable[[click.Context, str], Iterable[str | CompletionItem]]


def attach(command: click.Command, path: str) -> None:
    """Attach the completers of a command's options and arguments, and of its subcommands."""
    for param in command.params:
        completer = _OF_PARAMETER.get((path, param.name or "")) or _of_any(param)
        if completer is not None:
            # Click takes a completer only where a parameter is declared; here all of them are in one place.
            setattr(param, "shell_complete", _quiet(completer))  # noqa: B010 - a method of the instance
    for name, below in command.commands.items() if isinstance(command, click.Group) else ():
        attach(below, f"{path} {name}")


def _of_any(param: click.Parameter) -> Completer | None:
    """The completer of an option that is the same for all commands, by its name or metavar."""
    if not isinstance(param, click.Option):
        return None
    return _BY_METAVAR.get(str(param.metavar)) or _BY_NAME.get(param.name or "")


def _quiet(completer: Completer) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(Exception):
            texts = completer(ctx, incomplete)
            items = [item if isinstance(item, CompletionItem) else CompletionItem(item) for item in texts]
            matching = [
                item for item in items if item.type != "plain" or str(item.value).startswith(incomplete)
            ]
            return matching[:_ITEMS_MAX]
        return []

    return complete


def files(_ctx: click.Context, incomplete: str) -> Iterable[CompletionItem]:
    """Files, which the shell completes itself."""
    return [CompletionItem(incomplete, type="file")]


def folders(_ctx: click.Context, incomplete: str) -> Iterable[CompletionItem]:
    """Folders."""
    return [CompletionItem(incomplete, type="dir")]


def contexts(_ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The contexts of the configuration file."""
    from koguma.cli import contexts as kept  # noqa: PLC0415 - only here

    return sorted(context.name for context in kept.load(kept.path(os.environ)).contexts)


def meshes(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The meshes of the server."""
    return _names(ctx, "/meshes")


def kinds(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The plural of each kind, which is its most descriptive name."""
    return sorted(kind.plural for kind in _kinds(ctx))


def policy_kinds(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The kinds that are policies, by name."""
    return sorted(kind.name for kind in _kinds(ctx) if kind.is_policy)


def policy_plurals(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The kinds that are policies, by plural."""
    return sorted(kind.plural for kind in _kinds(ctx) if kind.is_policy)


def objects(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """A kind, then names of its objects; or KIND/NAME."""
    words = ctx.params.get("words") or ()
    if "/" in incomplete:
        kind = incomplete.partition("/")[0]
        return [f"{kind}/{name}" for name in _named(ctx, kind)]
    if not words:
        return kinds(ctx, incomplete)
    return [name for name in _named(ctx, words[0]) if name not in words[1:]]


def shown_objects(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """The same for `get`, which also has `proxies`, `endpoints` and `all`."""
    words = ctx.params.get("words") or ()
    if words and words[0] in ("proxies", "proxy"):
        return [name for name in dataplanes(ctx, incomplete) if name not in words[1:]]
    if words and words[0] in ("endpoints", "endpoint"):
        return [name for name in all_services(ctx, incomplete) if name not in words[1:]]
    extra = ("all", "endpoints", "proxies") if not words and "/" not in incomplete else ()
    return [*objects(ctx, incomplete), *extra]


def dataplanes(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The Dataplanes of the mesh."""
    return _named(ctx, "dataplanes")


def zone_egresses(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The ZoneEgresses."""
    return _named(ctx, "zoneegresses")


def zone_ingresses(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The ZoneIngresses."""
    return _named(ctx, "zoneingresses")


def services(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The MeshServices of the mesh."""
    return _named(ctx, "meshservices")


def all_services(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The services of the mesh, of all kinds."""
    plurals = ("meshservices", "meshexternalservices", "meshmultizoneservices")
    return sorted({name for plural in plurals for name in _named(ctx, plural)})


def shown_traffic(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """The services or proxies that `top` can show."""
    return dataplanes(ctx, incomplete) if ctx.params.get("by") == "proxies" else all_services(ctx, incomplete)


def policies(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The policies of the kind in the arguments before."""
    return _named(ctx, str(ctx.params.get("kind") or ""))


def destinations(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The services that the proxy in the arguments before calls."""
    return sorted({name for name, _ in _outbounds(ctx)})


def ports(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The ports of the service in --to."""
    return sorted({port for name, port in _outbounds(ctx) if name == ctx.params.get("to")})


def routes(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The routes of the mesh."""
    return sorted({*_named(ctx, "meshhttproutes"), *_named(ctx, "meshtcproutes")})


def fields(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The fields that policies set for calls; of one kind where --kind is given."""
    from koguma.cli import policy_fields  # noqa: PLC0415 - the kinds are the largest import of all

    return policy_fields.outbound(str(ctx.params.get("kind") or ""))


def _client(ctx: click.Context) -> "contextlib.closing[ApiClient]":
    """A client with short timeouts, of the server in the options so far."""
    flags = {name: ctx.params.get(name) for name in _CONNECTION}
    return options.impatient_client(flags, _TIMEOUT_SECONDS, _TIMEOUT_SECONDS)


def _kinds(ctx: click.Context) -> "KindIndex":
    """The server's kinds; those of this program where it does not answer."""
    try:
        with _client(ctx) as client:
            return kind_lookup.from_server(client)
    except Exception:  # noqa: BLE001 - for whatever reason the server does not answer
        return kind_lookup.local()


def _named(ctx: click.Context, kind: str) -> list[str]:
    """The names of a kind's objects, in the mesh of the options so far."""
    with _client(ctx) as client:
        kind_info: KindInfo = kind_lookup.from_server(client).find(kind)
        mesh = None if ctx.params.get("all_meshes") else str(ctx.params.get("mesh") or "default")
        return _first_page(client, kind_info.path(mesh))


def _names(ctx: click.Context, path: str) -> list[str]:
    with _client(ctx) as client:
        return _first_page(client, path)


def _first_page(client: "ApiClient", path: str) -> list[str]:
    items = client.get(path, [("size", str(_ITEMS_MAX))]).field("items")
    return sorted({str(item["name"]) for item in items})


def _outbounds(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Names and ports of a proxy's outbounds."""
    from koguma.cli.explanation import ServerInspect  # noqa: PLC0415 - only here
    from koguma.model import kri  # noqa: PLC0415 - the same

    # While an option has no value yet, click leaves arguments unparsed in `args`.
    name = str(ctx.params.get("name") or next(iter(ctx.args), ""))
    with _client(ctx) as client:
        mesh = str(ctx.params.get("mesh") or "default")
        for outbound in ServerInspect(client, mesh, name).layout()["outbounds"]:
            if outbound["kri"]:
                identifier = kri.parse(outbound["kri"])
                yield identifier.name, identifier.section


_BY_METAVAR: Final[Mapping[str, Completer]] = {"FILE": files, "PATH": files, "DIR": folders}
_BY_NAME: Final[Mapping[str, Completer]] = {"mesh": meshes, "context": contexts}
# By the command's path and the parameter's name.
_OF_PARAMETER: Final[Mapping[tuple[str, str], Completer]] = {
    ("get", "words"): shown_objects,
    ("top", "names"): shown_traffic,
    ("describe", "words"): objects,
    ("edit", "words"): objects,
    ("delete", "words"): objects,
    ("history", "words"): objects,
    ("wait", "words"): objects,
    ("inspect dataplane", "name"): dataplanes,
    ("inspect zoneegress", "name"): zone_egresses,
    ("inspect policy", "kind"): policy_plurals,
    ("inspect policy", "name"): policies,
    ("inspect service", "name"): services,
    ("can", "caller"): services,
    ("can", "to"): services,
    ("explain dataplane", "name"): dataplanes,
    ("explain zoneegress", "name"): zone_egresses,
    ("explain zoneingress", "name"): zone_ingresses,
    ("explain dataplane", "to"): destinations,
    ("explain dataplane", "port"): ports,
    ("explain dataplane", "route"): routes,
    ("explain dataplane", "kind"): policy_kinds,
    ("explain dataplane", "field"): fields,
    ("kri build", "kind"): kinds,
    ("token dataplane", "name"): dataplanes,
    ("token inspect", "token"): files,
    ("config use", "name"): contexts,
    ("config remove", "name"): contexts,
}
