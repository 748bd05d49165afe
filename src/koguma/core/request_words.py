"""Request words: matches of routes and of clients as short texts for people."""

from collections.abc import Iterator

from koguma.core.inbound import Client
from koguma.model.schema import Json


def of_matches(matches: Json) -> str:
    """The matches of a route's rule, short."""
    return " or ".join(" ".join(_conditions(each)) or "all requests" for each in matches or ())


def _conditions(match: Json) -> Iterator[str]:
    if match.get("method"):
        yield str(match["method"])
    if match.get("path"):
        yield f"{match['path'].get('type', 'PathPrefix')} {match['path'].get('value', '/')}"
    for word, named in (("header", match.get("headers")), ("query", match.get("queryParams"))):
        for part in named or ():
            yield f"{word} {part.get('name')} {part.get('type', 'Exact')} {part.get('value', '')}".rstrip()


def of_client(client: Client) -> str:
    """The clients that an inbound rule is for; empty where these are all."""
    words = [f"{tag}={value}" for tag, value in client.tags]
    words += [f"{name} {type_} {value}" for name, (type_, value) in _identities(client) if value]
    return ", ".join(words)


def _identities(client: Client) -> Iterator[tuple[str, tuple[str, str]]]:
    yield "spiffeID", client.spiffe_id
    yield "sni", client.sni
