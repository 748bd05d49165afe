"""`koguma token`: issue, inspect and revoke the tokens of users, proxies and zones."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from koguma.cli import claims, options, revocations, tables, token_review
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import ExitCode
from koguma.cli.output import json_text
from koguma.cli.token_review import Verdict
from koguma.model import tags as tag_words

_INSPECT_EXAMPLES = """\b
Examples:
  koguma token inspect ~/web-1.token
  koguma token dataplane -m shop --service web | koguma token inspect -
  koguma token inspect admin-token -o json --address https://mesh.example:5682 --ca-file ca.pem
"""
_valid_for = click.option("--valid-for", metavar="DURATION", help="How long it holds, such as 24h or 720h.")


@click.group("token")
def command() -> None:
    """Issue, inspect and revoke tokens."""


@command.command("user")
@click.option("--name", required=True, help="Name of the user.")
@click.option("--group", "groups", multiple=True, help="Group that the user is in; repeatable.")
@click.option(
    "--valid-for", required=True, metavar="DURATION", help="How long it holds, such as 24h or 720h."
)
@options.connected
def user(client: ApiClient, *, name: str, groups: Sequence[str], valid_for: str) -> None:
    """Issue a token for a user of the API."""
    _issue(client, "user", {"name": name, "groups": list(groups), "validFor": valid_for})


@command.command("dataplane")
@options.mesh
@click.option("--name", help="The only proxy that may use it.")
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Tag that the proxy must have; repeatable."
)
@click.option(
    "--service",
    "services",
    multiple=True,
    help="Service that the proxy may be, short for --tag kuma.io/service=NAME; repeatable.",
)
@click.option("--proxy-type", help="dataplane, ingress or egress.")
@click.option("--workload", help="The only workload that the proxy may stand for.")
@_valid_for
@options.connected
def dataplane(  # noqa: PLR0913 - one for each flag
    client: ApiClient,
    *,
    mesh: str,
    name: str | None,
    tags: Sequence[str],
    services: Sequence[str],
    proxy_type: str | None,
    workload: str | None,
    valid_for: str | None,
) -> None:
    """Issue a token for a proxy of a mesh; what is left out is not bound."""
    body = {"mesh": mesh, "name": name, "type": proxy_type, "workload": workload, "validFor": valid_for}
    named = [*tags, *(f"{tag_words.SERVICE}={service}" for service in services)]
    _issue(client, "dataplane", {**body, "tags": _tags(named)})


@command.command("zone")
@click.option("--zone", help="Name of the zone; any where it is left out.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE[,SCOPE]",
    help="ingress, egress or cp; repeatable, all by default.",
)
@_valid_for
@options.connected
def zone(client: ApiClient, *, zone: str | None, scopes: Sequence[str], valid_for: str | None) -> None:
    """Issue a token for what a zone runs."""
    listed = [scope for text in scopes for scope in text.split(",") if scope]
    _issue(client, "zone", {"zone": zone, "scope": listed, "validFor": valid_for})


@command.command("revoke")
@click.argument("purpose", type=click.Choice(("user", "dataplane", "zone", "service-account")))
@click.argument("token", metavar="TOKEN|ID|-")
@click.option("-m", "--mesh", help="Mesh of a dataplane token that is given by its id.")
@options.connected
def revoke(client: ApiClient, *, purpose: str, token: str, mesh: str | None) -> None:
    """Revoke a token, by itself or by its id (jti); - reads it from standard input."""
    revocation = revocations.parse(purpose, claims.read(token), mesh)
    is_new = revocations.revoke(client, revocation)
    print(f"{purpose} token {revocation.jti} " + ("revoked" if is_new else "was revoked before"))


@command.command("inspect", epilog=_INSPECT_EXAMPLES)
@click.argument("token", metavar="FILE|-|TOKEN")
@options.output("json")
@options.connection
def inspect(token: str, *, output: str | None, **connection: str | None) -> ExitCode:
    """Show what a token says, and ask the control plane whether it holds.

    The token itself is not printed. Exit code 0: it holds, or nobody could be asked. 1: it does not hold.
    """
    text = claims.from_file(token)
    header, payload = claims.decoded(text)
    verdict = token_review.reviewed(connection, text, claims.purpose(payload))
    if output == "json":
        document = {
            "purpose": claims.purpose(payload),
            "verified": verdict.valid is True,
            **verdict._asdict(),
            "header": header,
            "claims": payload,
        }
        print(json_text(document))
    else:
        for line in tables.pairs(_inspected(header, payload, verdict, datetime.now(UTC))):
            print(line)
    return ExitCode.REFUSED if verdict.valid is False else ExitCode.FINE


def _issue(client: ApiClient, purpose: str, body: Json) -> None:
    sent = {name: value for name, value in body.items() if value}
    print(client.send("POST", f"/tokens/{purpose}", body=sent).value)


def _tags(tags: Sequence[str]) -> dict[str, list[str]]:
    values_by_key: dict[str, list[str]] = {}
    for tag in tags:
        key, equals, value = tag.partition("=")
        if not equals or not key:
            raise click.UsageError(f'--tag: "{tag}" must be KEY=VALUE')
        values_by_key.setdefault(key, []).append(value)
    return values_by_key


def _inspected(header: Json, payload: Json, verdict: Verdict, now: datetime) -> Iterator[tuple[str, str]]:
    yield "holds", str(verdict)
    yield "purpose", claims.purpose(payload)
    yield "id", str(payload.get("jti", ""))
    yield "key", f"{header.get('kid', '')} ({header.get('alg', '')})"
    for name, word in (("iat", "issued"), ("nbf", "not before"), ("exp", "expires")):
        yield word, _time(payload.get(name), now)
    for name in sorted(set(payload) - {"jti", "iat", "nbf", "exp"}):
        value = payload[name]
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(seconds: Json, now: datetime) -> str:
    try:
        at = datetime.fromtimestamp(float(seconds), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
    away = f"in {tables.length(at - now)}" if at > now else f"{tables.length(now - at)} ago"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({away})"
