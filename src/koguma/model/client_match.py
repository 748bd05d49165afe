"""ClientMatch: which callers an inbound rule is for: by SPIFFE identity, by SNI."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from koguma.model import names
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation, child

_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/[A-Za-z0-9._-]+)*")
_SPIFFE_PREFIX = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/[A-Za-z0-9._-]+)*/?")


class SpiffeIdMatch(Spec):
    """A caller's SPIFFE identity, whole or by its beginning."""

    type: Annotated[Literal["Exact", "Prefix"], doc("Compare the whole identity, or its beginning.")]
    value: Annotated[str, doc("The identity, such as spiffe://default/web.")]


class SniMatch(Spec):
    """The server name that the caller asked for."""

    type: Annotated[Literal["Exact"], doc("Compare the whole name.")]
    value: Annotated[str, doc("The server name.")]


class ClientMatch(Spec, rename={"spiffe_id": "spiffeID", "sni": "sni"}):
    """All that is set must hold."""

    spiffe_id: Annotated[SpiffeIdMatch | None, doc("The caller's SPIFFE identity.")] = None
    sni: Annotated[SniMatch | None, doc("The server name in the caller's TLS hello.")] = None


def violations(match: ClientMatch, path: str, *, needs_one: bool = False) -> Iterator[Violation]:
    """What is wrong with a match."""
    if needs_one and match.spiffe_id is None and match.sni is None:
        yield Violation(path, "must specify at least one of 'spiffeID' or 'sni'", "required")
    if match.spiffe_id is not None:
        pattern = _SPIFFE_ID if match.spiffe_id.type == "Exact" else _SPIFFE_PREFIX
        if not pattern.fullmatch(match.spiffe_id.value):
            yield Violation(child(path, "spiffeID"), "must be a valid Spiffe ID", "spiffe")
    if match.sni is not None:
        at = child(child(path, "sni"), "value")
        if not match.sni.value:
            yield Violation(at, "must be set", "required")
        elif not names.is_subdomain(match.sni.value):
            yield Violation(at, names.SUBDOMAIN_MESSAGE, "name")
