"""`make release`: the wheel and the sdist, an SBOM, provenance and checksums, in `dist/`.

    python -m release [DIRECTORY]

Nothing is downloaded, and the same commit makes the same bytes: times in the files are the commit's.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from koguma import __version__
from release import lock, provenance, sbom
from release.lock import ROOT
from release.provenance import Source


def main(words: list[str]) -> int:
    """Make all files of a release; says what it made."""
    directory = Path(words[0]) if words else ROOT / "dist"
    source = found_source()
    built = packages(directory, source)
    bill = directory / f"koguma-{__version__}.cdx.json"
    bill.write_text(sbom.text(__version__, lock.pins(lock.RUNTIME), source.committed_at), encoding="utf-8")
    statement = provenance.statement([*built, bill], [lock.RUNTIME, lock.DEV], source)
    where_from = directory / f"koguma-{__version__}.intoto.json"
    where_from.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")
    made = sorted([*built, bill, where_from])
    sums = directory / "SHA256SUMS"
    sums.write_text("".join(f"{provenance.sha256(file)}  {file.name}\n" for file in made), encoding="utf-8")
    for file in (*made, sums):
        print(file)
    if not source.is_clean:
        print("warning: there are changes that are in no commit; do not publish this", file=sys.stderr)
    return 0


def found_source() -> Source:
    """The commit that is checked out; without git, an unknown one that counts as changed."""
    try:
        commit = _git("rev-parse", "HEAD")
        seconds = int(_git("log", "-1", "--format=%ct"))
        is_clean = not _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return Source("unknown", datetime.fromtimestamp(0, UTC), is_clean=False)
    return Source(commit, datetime.fromtimestamp(seconds, UTC), is_clean)


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def packages(directory: Path, source: Source) -> list[Path]:
    """The wheel and the sdist, built with what is installed."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in (*directory.glob("koguma-*"), directory / "SHA256SUMS"):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(directory.absolute())]
    epoch = str(max(int(source.committed_at.timestamp()), _ZIP_EPOCH))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return sorted((*directory.glob("koguma-*.whl"), *directory.glob("koguma-*.tar.gz")))


_ZIP_EPOCH = 315_532_800  # 1980: zip files know no earlier time

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
