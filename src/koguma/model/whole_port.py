"""Whole port: domains of external services over tcp, which take all connections of a port.

A tcp connection does not say which domain it is for. Where a port has only domains they take all of it (seed
001); where it also has addresses, these alone say which connections are meant.
"""

from collections.abc import Iterator, Sequence

from koguma.model.violation import item

TypePortProtocol = tuple[str, int, str]  # of a match


def is_idle(match: TypePortProtocol, matches: Sequence[TypePortProtocol]) -> bool:
    """Whether a domain over tcp matches nothing, since its port has addresses."""
    type_, port, protocol = match
    return type_ == "Domain" and protocol == "tcp" and not _has_only_domains(port, matches)


def _has_only_domains(port: int, matches: Sequence[TypePortProtocol]) -> bool:
    return all(type_ == "Domain" for type_, other_port, _ in matches if other_port == port)


def warnings(matches: Sequence[TypePortProtocol]) -> Iterator[str]:
    """A warning for each match that takes a whole port."""
    for index, (type_, port, protocol) in enumerate(matches):
        if type_ == "Domain" and protocol == "tcp" and _has_only_domains(port, matches):
            yield (
                f"{item('spec.match', index)}: a tcp connection does not say which domain it is for, so this"
                f" takes all traffic on port {port}; choose tls, http, http2 or grpc, or match addresses"
            )
