"""Provenance: an in-toto statement, with SLSA's predicate, about the files of a release.

It is not signed here; whoever publishes a release signs it, with a key that is not on the build machine.
"""

import hashlib
import platform
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
_BUILD_TYPE: Final = "urn:koguma:make-release:v1"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class Source(NamedTuple):
    """The commit that is built; `is_clean` is False where the tree had other changes."""

    commit: str
    committed_at: datetime
    is_clean: bool


def sha256(file: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def statement(artefacts: list[Path], locks: list[Path], source: Source) -> dict[str, Any]:
    """The statement about artefacts that were built from a commit and the lock files."""
    dependencies = [
        {"uri": "git+koguma", "digest": {"gitCommit": source.commit}},
        *({"uri": f"file:requirements/{file.name}", "digest": {"sha256": sha256(file)}} for file in locks),
    ]
    return {
        "_type": STATEMENT,
        "subject": [{"name": file.name, "digest": {"sha256": sha256(file)}} for file in sorted(artefacts)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"target": "release", "clean": source.is_clean},
                "internalParameters": {
                    "python": platform.python_version(),
                    "sourceDateEpoch": int(source.committed_at.timestamp()),
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": "urn:koguma:make"},
                # The time of the commit and not of the build: one commit makes one statement.
                "metadata": {"startedOn": source.committed_at.strftime(_TIME)},
            },
        },
    }
