"""Packages of others, as a package manager leaves them behind, for processes that find them by PYTHONPATH."""

import tomllib
from collections.abc import Mapping
from pathlib import Path


def install(site: Path, name: str, entry_points: Mapping[str, str], group: str = "koguma.policies") -> None:
    """What a package manager leaves behind, as far as it is looked at."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def install_example(site: Path, example: Path) -> None:
    """An example, installed as its pyproject says."""
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    for group, entry_points in project["entry-points"].items():
        install(site, project["name"], entry_points, group)
