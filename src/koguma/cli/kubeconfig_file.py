"""The file of `koguma kubeconfig`: adds a cluster, a user and a context of the same name to a kubeconfig.

Other entries keep their content and order; comments are not kept. The file is readable by its owner alone,
and is replaced atomically.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from koguma.cli.failures import CommandFailure, ExitCode
from koguma.model.redacted import Redacted

Json = Any

_PARTS: Final = ("clusters", "users", "contexts")
_CURRENT: Final = "current-context"
MASK: Final = "*****"


class KubeconfigEntry(NamedTuple):
    """How to reach one control plane; without `ca_data` the system's CAs must know its certificate."""

    name: str
    server: str
    ca_data: str
    token: Redacted
    namespace: str

    def parts(self) -> dict[str, Json]:
        """Its entry in each list of the file."""
        cluster = {"server": self.server}
        if self.ca_data:
            cluster["certificate-authority-data"] = self.ca_data
        context = {"cluster": self.name, "user": self.name, "namespace": self.namespace}
        return {
            "clusters": {"name": self.name, "cluster": cluster},
            "users": {"name": self.name, "user": {"token": self.token.reveal()}},
            "contexts": {"name": self.name, "context": context},
        }


def content(before: Mapping[str, Json], entry: KubeconfigEntry, *, keep_current: bool) -> dict[str, Json]:
    """The file with an entry added or replaced."""
    after: dict[str, Json] = {"apiVersion": "v1", "kind": "Config", **before}
    for part, new in entry.parts().items():
        entries = list(after.get(part) or ())
        places = [index for index, old in enumerate(entries) if old.get("name") == entry.name]
        if places:
            entries[places[0]] = new
        else:
            entries.append(new)
        after[part] = entries
    if not keep_current:
        after[_CURRENT] = entry.name
    return after


def default_path(environment: Mapping[str, str]) -> Path:
    """The file that kubectl itself would write to: of several in KUBECONFIG, the last that exists."""
    listed = [Path(path) for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    existing = [path for path in listed if path.exists()]
    return (existing or listed or [Path.home() / ".kube" / "config"])[-1]


def merge(file: Path, entry: KubeconfigEntry, *, keep_current: bool) -> None:
    """Add the entry to a file, which is created where it does not exist."""
    _save(file, content(_load(file), entry, keep_current=keep_current))


def write(file: Path, entry: KubeconfigEntry, *, keep_current: bool) -> None:
    """Replace the file; one with other entries is refused."""
    names = {old.get("name") for part in _PARTS for old in _load(file).get(part) or ()}
    others = names - {entry.name}
    if others:
        raise CommandFailure(
            f"{file} also holds {', '.join(sorted(map(str, others)))}; nothing is written",
            (" - give --merge to add to it, or another file",),
        )
    _save(file, content({}, entry, keep_current=keep_current))


def text(value: Json) -> str:
    """The file's text."""
    from koguma.cli import output  # noqa: PLC0415 - `--help` does not need YAML

    return output.yaml_text(value)


def _save(file: Path, value: Json) -> None:
    from koguma.identity import files  # noqa: PLC0415 - printing does not need it

    try:
        files.write_private(file.resolve(), text(value))  # a symbolic link stays one
    except OSError as error:
        raise CommandFailure(f"{file} cannot be written: {error.strerror}") from None


def _load(file: Path) -> dict[str, Json]:
    try:
        value = _parsed(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, str(getattr(error, "strerror", None) or error)) from None
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(_is_list_of_objects(value.get(part)) for part in _PARTS):
        raise _unusable(file, "it must hold lists of clusters, users and contexts")
    return value


def _parsed(file: Path) -> Json:
    import yaml  # noqa: PLC0415 - printing does not need it

    class Loader(yaml.CSafeLoader):
        """As Go reads YAML: a date is a string."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=Loader)  # noqa: S506 - it is a safe one
    except yaml.YAMLError as error:
        raise _unusable(file, " ".join(str(error).split())) from None


def _is_list_of_objects(value: Json) -> bool:
    return isinstance(value or [], list) and all(isinstance(entry, dict) for entry in value or ())


def _unusable(file: Path, why: str) -> CommandFailure:
    return CommandFailure(
        f"{file} is no kubeconfig that could be added to: {why}; nothing is written", code=ExitCode.USAGE
    )
