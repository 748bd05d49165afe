"""`koguma zone`: let a zone that is alone join a Global, with its objects kept, and let it leave again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from koguma.cli import global_preview, options, settings_file, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.model.errors import BadRequest
from koguma.sync import zone_credentials

Json = Any

_DRY: Final = [("dryRun", "All")]
_JOIN: Final = "/_zone/join"
_LINES: Final = "application/x-ndjson"
_SETTINGS: Final = ("globalAddress", "globalCa", "zoneTokenFile")
_WORDS: Final = {
    "missing": "is not on Global: bring it there first",
    "differs": "differs from Global's: make them the same, or take Global's (--take-global)",
    "kept": "stays this zone's own, and Global's of that name is refused here; --take-global takes Global's",
    "beside": "stays beside Global's of that name: both act here, and this zone's wins",
}


@click.group("zone")
def command() -> None:
    """Let a zone join a Global control plane, or leave it."""


@command.command("join")
@click.option("--global-address", metavar="URL", required=True, help="Global, as grpcs://HOST:5685.")
@click.option("--global-ca", metavar="FILE", default="", help="CA of Global's certificate (PEM).")
@click.option("--zone-token-file", metavar="FILE", required=True, help="Zone token with the scope cp.")
@click.option(
    "--take-global", is_flag=True, help="Where both have a Mesh or a Secret that differs, take Global's."
)
@click.option("--for-global", metavar="FILE", help="Write what Global lacks to a file, to be applied there.")
@click.option("--write", "settings", metavar="FILE", help="Write the settings to the control plane's file.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@options.connected
def join(  # noqa: PLR0913 - each is an option
    client: ApiClient,
    *,
    global_address: str,
    global_ca: str,
    zone_token_file: str,
    take_global: bool,
    for_global: str | None,
    settings: str | None,
    dry_run: bool,
) -> ExitCode:
    """Prepare a zone that is alone for a Global, and say how to start it.

    What the zone wrote stays its own and goes to Global. Meshes, and other kinds that only Global writes,
    must be there too, and the same: --dry-run says which are not, and --for-global writes them to a file
    for `koguma apply` on Global.
    """
    files = {
        "globalAddress": global_address,
        "globalCa": _full(global_ca),
        "zoneTokenFile": _full(zone_token_file),
    }
    try:
        ca = zone_credentials.ca(_content(global_ca, "--global-ca"), global_ca) if global_ca else b""
        token = zone_credentials.token(_content(zone_token_file, "--zone-token-file"), zone_token_file)
    except BadRequest as error:
        raise CommandFailure(error.detail) from None
    body = _body(client, global_address, ca, token, take_global=take_global)
    plan = client.upload(_JOIN, _DRY, body, _LINES).object
    _print(_planned(plan, is_sure=not (dry_run or plan["blocking"])))
    if for_global is not None:
        _write_for_global(client, plan, for_global)
    if plan["blocking"]:
        terminal.print_stderr(_blocked(plan, for_global))
        return ExitCode.REFUSED
    if dry_run:
        print("(dry run: nothing was changed)")
        return ExitCode.FINE
    client.upload(_JOIN, [], body, _LINES)
    _print(_after_join(plan, files, settings))
    return ExitCode.FINE


@command.command("leave")
@click.option("--keep", "choice", flag_value="keep", help="Keep what came from Global as the zone's own.")
@click.option("--remove", "choice", flag_value="remove", help="Remove what came from Global.")
@click.option(
    "--write", "settings", metavar="FILE", help="Take the settings out of the control plane's file."
)
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@options.connected
def leave(client: ApiClient, *, choice: str | None, settings: str | None, dry_run: bool) -> ExitCode:
    """Turn a zone of a Global into one that is alone.

    Start its control plane without the settings of Global (--write takes them out of the file), then run
    this again: it keeps what came from Global as the zone's own, or removes it.
    """
    if choice is None:
        raise click.UsageError("say what becomes of what came from Global: --keep or --remove")
    plan = client.send("POST", "/_zone/leave", _DRY, {"objects": choice}).object
    _print(_left(plan))
    if plan["isConnected"]:
        if settings is not None and not dry_run:
            settings_file.change(settings, dict.fromkeys(_SETTINGS))
            print(f"the settings of Global are no longer in {settings}")
        flags = "--global-address, --global-ca and --zone-token-file"
        print(f"Start the control plane without {flags}, then run this again.")
        return ExitCode.FINE if dry_run else ExitCode.REFUSED
    if dry_run:
        print("(dry run: nothing was changed)")
        return ExitCode.FINE
    client.send("POST", "/_zone/leave", [], {"objects": choice})
    print(f'zone "{plan["zone"]}" is alone now; delete its Zone on Global: koguma delete zone {plan["zone"]}')
    return ExitCode.FINE


def _body(client: ApiClient, address: str, ca: bytes, token: str, *, take_global: bool) -> bytes:
    """What Global would send, for the control plane of the zone."""
    settings = client.get("/config").object
    if settings.get("mode") != "zone":
        raise CommandFailure("this control plane is Global; ask the one of the zone (--address)")
    kinds = [str(kind["name"]) for kind in client.get("/_resources").field("resources")]
    preview = global_preview.asked(address, ca, token, str(settings["zoneName"]), kinds)
    head = {
        "globalId": preview.greeting.source,
        "globalVersion": preview.greeting.version,
        "takeGlobal": take_global,
    }
    return b"\n".join((json.dumps(head).encode(), *preview.objects, b""))


# What is printed.


def _planned(plan: Json, *, is_sure: bool) -> Iterator[str]:
    joins = "joins" if is_sure else "would join"
    yield f'zone "{plan["zone"]}" {joins} Global {plan["globalId"]} (version {plan["globalVersion"]})'
    yield f"  to Global:    {_counts(plan['toGlobal'])}"
    yield f"  from Global:  {_counts(plan['fromGlobal'])}"
    yield f"  stays here:   {_counts(plan['stays'])}"
    if plan["handedOver"]:
        names = ", ".join(map(_name, plan["handedOver"]))
        yield f"  becomes Global's, and is changed there from then on: {names}"
    for finding in (*plan["beside"], *plan["blocking"]):
        fields = f" (at {', '.join(finding['fields'])})" if finding["fields"] else ""
        yield f"  {_name(finding)} {_WORDS[finding['verdict']]}{fields}"


def _blocked(plan: Json, for_global: str | None) -> str:
    file = for_global or "for-global.yaml"
    how = "" if for_global else f"run this with --for-global {file}, then "
    return (
        f"{_number(plan['blocking'], 'in the way')}. To bring that to Global: {how}"
        f"`koguma apply -f {file}` on Global, and run this again"
    )


def _after_join(plan: Json, files: Mapping[str, str], settings: str | None) -> Iterator[str]:
    if settings is not None:
        settings_file.change(
            settings, {"zoneName": plan["zone"], **{key: value or None for key, value in files.items()}}
        )
        yield f"{settings} has the settings; restart the control plane of the zone"
        return
    flags = (
        f"--mode zone --zone-name {plan['zone']} --global-address {files['globalAddress']}"
        + (f" --global-ca {files['globalCa']}" if files["globalCa"] else "")
        + f" --zone-token-file {files['zoneTokenFile']}"
    )
    yield "ready. Start the control plane of the zone with these flags, or --write them to its settings file:"
    yield f"  koguma cp run {flags}"


def _left(plan: Json) -> Iterator[str]:
    yield f'zone "{plan["zone"]}" leaves Global'
    yield f"  kept as its own:  {_counts(plan['kept'])}"
    yield f"  removed:          {_counts(plan['removed'])}"
    if plan["ofOtherZones"]:
        yield f"  of other zones, among these: {_counts(plan['ofOtherZones'])}"
    for each in plan["renamed"]:
        yield f"  {each['kind']} {each['was']} is kept as {each['name']}: the zone has one of its own"


def _name(finding: Json) -> str:
    return f"{finding['kind']}/{finding['name']}" + (f" of mesh {finding['mesh']}" if finding["mesh"] else "")


def _number(objects: Sequence[Json], where: str) -> str:
    return f"1 object is {where}" if len(objects) == 1 else f"{len(objects)} objects are {where}"


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in numbers.items()) or "nothing"


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(terminal.printable(line))


# Files.


def _write_for_global(client: ApiClient, plan: Json, path: str) -> None:
    """Write the objects that Global lacks, or has another of, as they are here; with Secrets of meshes."""
    from koguma.cli import output as formats  # noqa: PLC0415 - only here is YAML needed

    meshes = [
        each["name"] for each in plan["blocking"] if each["kind"] == "Mesh" and each["verdict"] == "missing"
    ]
    secrets = [
        secret for mesh in meshes for secret in client.pages(f"/meshes/{quote(mesh, safe='')}/secrets")
    ]
    objects = [client.get(f"/_kri/{quote(each['kri'], safe='')}").object for each in plan["blocking"]]
    others = [each for each in objects if each["type"] != "Mesh"]
    documents = [*secrets, *(each for each in objects if each["type"] == "Mesh"), *others]
    file = Path(path)
    file.touch(0o600)
    file.write_text(formats.yaml_stream([_for_global(each) for each in documents]), encoding="utf-8")
    print(_number(documents, f"in {path}, for Global{' (with secrets)' if secrets else ''}"))


def _for_global(document: Json) -> Json:
    """An object as a file has it: Global computes what says where it is from."""
    kept = {
        key: value
        for key, value in document.items()
        if key not in ("creationTime", "modificationTime", "kri", "status")
    }
    own = {key: value for key, value in (document.get("labels") or {}).items() if "kuma.io/" not in key}
    return {**kept, "labels": own} if own else {key: value for key, value in kept.items() if key != "labels"}


def _content(path: str, flag: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandFailure(f"{flag}: {path} cannot be read: {error.strerror}") from None


def _full(path: str) -> str:
    return str(Path(path).absolute()) if path else ""
