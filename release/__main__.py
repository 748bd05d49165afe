"""`make release`: the wheel and the sdist, an SBOM, provenance and checksums, in `dist/`.

    python -m release [DIRECTORY]

Nothing is downloaded, and builds are reproducible: times in the files are those of the commit.
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


def main(arguments: list[str]) -> int:
    """Make all files of a release, and print their paths."""
    directory = Path(arguments[0]) if arguments else ROOT / "dist"
    source = checked_out()
    built = packages(directory, source)
    bill = directory / f"koguma-{__version__}.cdx.json"
    bill.write_text(sbom.text(__version__, lock.pins(lock.RUNTIME), source.committed_at), encoding="utf-8")
    statement = provenance.statement([*built, bill], [lock.RUNTIME, lock.DEV], source)
    attestation = directory / f"koguma-{__version__}.intoto.json"
    attestation.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")
    files = sorted([*built, bill, attestation])
    sums = directory / "SHA256SUMS"
    sums.write_text("".join(f"{provenance.sha256(file)}  {file.name}\n" for file in files), encoding="utf-8")
    for file in (*files, sums):
        print(file)
    if not source.is_clean:
        print("warning: there are changes that are in no commit; do not publish this", file=sys.stderr)
    return 0


def checked_out() -> Source:
    """The commit that is checked out; without git, an unknown one that counts as changed."""
    try:
        commit = _git("rev-parse", "HEAD")
        seconds = int(_git("log", "-1", "--format=%ct"))
        is_clean = not _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return Source("unknown", datetime.fromtimestamp(0, UTC), is_clean=False)
    return Source(commit, datetime.fromtimestamp(seconds, UTC), is_clean)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def packages(directory: Path, source: Source) -> list[Path]:
    """Build the wheel and the sdist, with the installed hatchling."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in (*directory.glob("koguma-*"), directory / "SHA256SUMS"):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(directory.absolute())]
    epoch = str(max(int(source.committed_at.timestamp()), _ZIP_EPOCH))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return sorted((*directory.glob("koguma-*.whl"), *directory.glob("koguma-*.tar.gz")))


_ZIP_EPOCH = 315_532_800  # 1980: the zip format has no earlier time

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
