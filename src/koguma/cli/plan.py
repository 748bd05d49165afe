"""`koguma plan`: what a change would do to every proxy, before it is applied."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from koguma.cli import inputs, offline, options, output, plan_files, plan_markdown, plan_text
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import ApiError, ExitCode
from koguma.cli.plan_files import FileChange
from koguma.core.plan.model import Plan
from koguma.model import forms
from koguma.model.documents import Document
from koguma.model.errors import KogumaError

_SOME_CHANGE: Final = 2


@click.command("plan", cls=options.ReadsFiles)
@options.files
@click.option(
    "--delete", "deleted", multiple=True, metavar="KIND/NAME", help="Object to be deleted; repeatable."
)
@click.option("--set", "set_name", metavar="NAME", help="As for apply.")
@click.option(
    "--prune", is_flag=True, help="Also delete what the set, or --base, has and the files have not."
)
@click.option(
    "--base",
    multiple=True,
    metavar="PATH",
    help="File or folder with what is stored now, instead of a server's objects; repeatable.",
)
@options.at
@click.option("--envoy", is_flag=True, help="Also show which fields of Envoy's resources change.")
@options.mesh
@offline.options
@options.output("json", "markdown")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@options.connection
def command(**flags: Any) -> int:
    """Say what a change would do to every proxy, before it is applied.

    Proxies for which the same changes are shown together: whom they can call and who may call them, which
    values change, from what to what and by which line of which policy, and which endpoints come and go. Then
    what has no effect and why, the warnings that apply would print, and what may stop traffic. Nothing is
    written, and the right to read the objects is enough. With --base no server is asked; with --at it is
    what the change would have done then. On Global every zone is asked; those that do not answer are named.

    Exit code 0: no proxy that you may read changes. 2: some do, or a zone is unknown. All others: an error.
    """
    mesh, as_json = flags.pop("mesh"), flags.pop("as_json")
    files, deleted = flags.pop("files"), flags.pop("deleted")
    form = "json" if as_json else flags.pop("output")
    documents = inputs.read(files, "or name objects with --delete") if files or not deleted else ()
    change = FileChange(documents, [_name(word, mesh) for word in deleted], prune=flags.pop("prune"))
    plan = _planned(change, **flags)
    _show(plan, documents, form)
    return _SOME_CHANGE if plan.changed or plan.unknown_zones else ExitCode.FINE


def _planned(change: FileChange, *, at: str | None, base: Sequence[str], **flags: Any) -> Plan:
    if base and at is not None:
        raise click.UsageError("--at is about a server's objects, and --base is instead of them")
    if at is not None:
        return _of_past(change, at, **flags)
    return _of_files(change, base=base, **flags) if base else _of_server(change, **flags)


def _of_past(
    change: FileChange,
    at: str,
    *,
    set_name: str | None,
    envoy: bool,
    zone: str,
    is_global: bool,
    **flags: Any,
) -> Plan:
    """What the change would have done then: the server's objects of that moment, compiled here."""
    if set_name or change.prune:
        raise click.UsageError("--set and --prune are about what is stored now, and do not go with --at")
    with contextlib.closing(_client(flags)) as client:
        named = offline.control_plane(zone=zone, is_global=is_global)
        control_plane = offline.control_plane_of(client, named)
        stored = list(offline.served(client, at))
    return plan_files.planned((), change, control_plane, stored, envoy_fields=envoy)


def _client(flags: Mapping[str, Any]) -> ApiClient:
    return options.client(**{name: flags[name] for name in ("address", "token_file", "ca_file", "context")})


def _of_files(
    change: FileChange,
    *,
    base: Sequence[str],
    set_name: str | None,
    envoy: bool,
    zone: str,
    is_global: bool,
    **_connection: str | None,
) -> Plan:
    if set_name:
        raise click.UsageError("--set is for a server's objects; with --base, --prune needs no set")
    control_plane = offline.control_plane(zone=zone, is_global=is_global)
    return plan_files.planned(inputs.read(base), change, control_plane, envoy_fields=envoy)


def _name(word: str, mesh: str) -> dict[str, str]:
    kind, slash, name = word.partition("/")
    if not slash or not name or not kind:
        raise click.UsageError(f'--delete "{word}" must be KIND/NAME, such as meshtimeout/slow')
    return {"type": kind, "name": name, "mesh": mesh}


def _of_server(change: FileChange, *, set_name: str | None, envoy: bool, **flags: Any) -> Plan:
    if change.prune and not set_name:
        raise click.UsageError("--prune needs --set NAME: the set whose leftovers are removed")
    values = [document.value for document in change.documents]
    body: dict[str, Json] = {"objects": values, "delete": [*change.deleted]}
    if set_name:
        body |= {"set": set_name, "prune": change.prune}
    query = [("envoy", "true")] if envoy else []
    with contextlib.closing(_client(flags)) as client:
        try:
            return msgspec.convert(client.send("POST", "/_plan", query, body).object, Plan)
        except ApiError as error:
            raise inputs.located(change.documents, error) from None


def _show(plan: Plan, documents: Sequence[Document], form: str | None) -> None:
    if form == "json":
        print(output.json_text(msgspec.to_builtins(plan)))
        return
    lines = plan_markdown.lines if form == "markdown" else plan_text.lines
    for line in lines(plan, _places(plan, documents)):
        print(line)


def _places(plan: Plan, documents: Sequence[Document]) -> dict[str, Document]:
    """The documents of the files by the KRI of the object in each."""
    kris = {(each.type, each.mesh, each.name): each.kri for each in plan.objects if each.kri}
    found: dict[str, Document] = {}
    for document in documents:
        with contextlib.suppress(KogumaError):
            draft = forms.read(document.value, offline.known_kinds())
            for name in (draft.name, f"{draft.name}.{draft.namespace}"):
                kri = kris.get(
                    (draft.kind.name, (draft.mesh or "") if draft.kind.is_mesh_scoped else "", name)
                )
                if kri:
                    found[kri] = document
    return found
