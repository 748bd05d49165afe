"""Hash policies: which part of a request or connection keeps it with one endpoint.

They act with the algorithms that hash, RingHash and Maglev. What each one finds is added to the hash; one
that is `terminal` ends the list as soon as there is a hash.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model.schema import Duration, Json, Spec, doc
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, route_matches, spelling


class HashHeader(Spec):
    """Keep requests with the same header together."""

    name: Annotated[fields.HeaderName, doc("The header's name.")]


class HashCookie(Spec):
    """Keep requests with the same cookie together."""

    name: Annotated[str, doc("The cookie's name.", min_length=1)]
    ttl: Annotated[Duration | None, doc("Make the cookie where it is missing, with this life.")] = None
    path: Annotated[str | None, doc("The path of a cookie that is made.")] = None


class HashConnection(Spec, rename={"source_ip": "sourceIP"}):
    """Keep connections from the same address together."""

    source_ip: Annotated[bool | None, doc("By the client's address.")] = None


class HashQueryParameter(Spec):
    """Keep requests with the same query parameter together."""

    name: Annotated[str, doc("The parameter's name; case matters.", min_length=1)]


class HashFilterState(Spec):
    """Keep requests with the same object in Envoy's filter state together."""

    key: Annotated[str, doc("The object's name.", min_length=1)]


class HashPolicy(Spec):
    """Which part of a request decides; the field that belongs to `type` says more."""

    type: Annotated[
        Literal["Header", "Cookie", "Connection", "QueryParameter", "FilterState"], doc("Which part.")
    ]
    terminal: Annotated[bool | None, doc("Stop here if there is a hash already.")] = None
    header: Annotated[HashHeader | None, doc("For type Header.")] = None
    cookie: Annotated[HashCookie | None, doc("For type Cookie.")] = None
    connection: Annotated[HashConnection | None, doc("For type Connection.")] = None
    query_parameter: Annotated[HashQueryParameter | None, doc("For type QueryParameter.")] = None
    filter_state: Annotated[HashFilterState | None, doc("For type FilterState.")] = None


reading: Final = spelling.field(
    "hashPolicies",
    spelling.each(
        spelling.chain(
            spelling.field("type", spelling.word("SourceIP", "Connection")),  # Kuma's older word
            spelling.field("header", route_matches.header_reading),
        )
    ),
)


def violations(policies: tuple[HashPolicy, ...], path: str) -> Iterator[Violation]:
    """What is wrong with hash policies."""
    for index, policy in enumerate(policies):
        at = item(path, index)
        field, body = {
            "Header": ("header", policy.header),
            "Cookie": ("cookie", policy.cookie),
            "Connection": ("connection", policy.connection),
            "QueryParameter": ("queryParameter", policy.query_parameter),
            "FilterState": ("filterState", policy.filter_state),
        }[policy.type]
        if body is None:
            yield Violation(child(at, field), fields.MUST_BE_DEFINED, "required")
        if isinstance(body, HashCookie):
            yield from _cookie(body, child(at, field))


def _cookie(cookie: HashCookie, path: str) -> Iterator[Violation]:
    yield from fields.not_negative_duration(cookie.ttl, child(path, "ttl"))
    if cookie.path is not None and not cookie.path.startswith("/"):
        yield Violation(child(path, "path"), "must be an absolute path", "path")


def envoy(policies: Json, *, is_http: bool) -> list[Data]:
    """What Envoy hashes, of a request or of a connection; what says nothing is left out."""
    hashed = []
    for policy in policies or ():
        part = _request_part(policy) if is_http else _connection_part(policy)
        if part:
            hashed.append({**part, "terminal": True} if is_http and policy.get("terminal") else part)
    return hashed


def _connection_part(policy: Json) -> Data:
    """A connection has an address and Envoy's state, nothing else to hash."""
    match policy["type"]:
        case "Connection" if (policy.get("connection") or {}).get("sourceIP"):
            return {"source_ip": {}}
        case "FilterState" if policy.get("filterState"):
            return {"filter_state": {"key": policy["filterState"]["key"]}}
        case _:
            return {}


def _request_part(policy: Json) -> Data:
    match policy["type"]:
        case "Header" if policy.get("header"):
            return {"header": {"header_name": policy["header"]["name"]}}
        case "Cookie" if policy.get("cookie"):
            return {"cookie": _cookie_part(policy["cookie"])}
        case "Connection" if (policy.get("connection") or {}).get("sourceIP"):
            return {"connection_properties": {"source_ip": True}}
        case "QueryParameter" if policy.get("queryParameter"):
            return {"query_parameter": {"name": policy["queryParameter"]["name"]}}
        case "FilterState" if policy.get("filterState"):
            return {"filter_state": {"key": policy["filterState"]["key"]}}
        case _:
            return {}


def _cookie_part(cookie: Json) -> Data:
    config = {"name": cookie["name"]}
    if cookie.get("ttl") is not None:
        config["ttl"] = proto_json.seconds(cookie["ttl"])
    if cookie.get("path"):
        config["path"] = cookie["path"]
    return config
