"""Usage hints: words of kubectl, kumactl or a shell that do not exist here, and what to type instead.

A word that means something elsewhere is not a typing mistake: the nearest kind would be a wrong guess, so
these are looked up first.
"""

from collections.abc import Iterable
from typing import Final

_FILE_SUFFIXES: Final = (".yaml", ".yml", ".json")
_KUBECTL: Final = "`koguma kubeconfig --merge`, then `kubectl get {} -A`"
# Kinds that only the Kubernetes form has, with the names that kubectl has for them.
_KUBERNETES_ONLY: Final = {
    "events": ("event", "ev"),
    "namespaces": ("namespace", "ns"),
    "configmaps": ("configmap", "cm"),
    "serviceaccounts": ("serviceaccount", "sa"),
    "leases": ("lease",),
    "roles": ("role",),
    "rolebindings": ("rolebinding",),
    "clusterroles": ("clusterrole",),
    "clusterrolebindings": ("clusterrolebinding",),
}
_BY_WORD: Final = {word: name for name, words in _KUBERNETES_ONLY.items() for word in (name, *words)}
_WORKLOADS: Final = frozenset(
    (
        "pod",
        "pods",
        "po",
        "deployment",
        "deployments",
        "deploy",
        "node",
        "nodes",
        "replicasets",
        "statefulsets",
    )
)
_COMMAND_OPTIONS: Final = {
    (
        "koguma delete",
        "--all",
    ): "to delete all that are listed: `koguma get KIND -o name | xargs koguma delete`",
}
# Options of kubectl and kumactl, and the equivalent ones here, best first.
_OPTIONS: Final = {
    "--all": ("--all-meshes",),
    "--all-namespaces": ("--all-meshes",),
    "--namespace": ("--mesh",),
    "-n": ("--mesh",),
    "--selector": ("--labels",),
    "--filename": ("--file",),
    "--recursive": ("--file",),
    "-R": ("--file",),
    "--config-file": ("--context",),
    "--kubeconfig": ("--context",),
    "--server": ("--address",),
    "-s": ("--address",),
    "--token": ("--token-file",),
}


def is_file(word: str) -> bool:
    """Whether a word looks like a file or folder, not like a kind."""
    return word.lower().endswith(_FILE_SUFFIXES) or word.startswith(("./", "../", "/", "~/"))


def file_advice(command: str, words: Iterable[str]) -> str:
    """The right command line for files that were given without -f."""
    flags = " ".join(f"-f {word}" for word in words)
    return f"files are given with -f: {command} {flags}"


def kind_advice(word: str) -> str:
    """What to use instead of a kind that does not exist here; empty where the word is not known."""
    lowered = word.lower()
    if lowered in _BY_WORD:
        name = _BY_WORD[lowered]
        return f"{name} are kept in the Kubernetes form only: {_KUBECTL.format(name)}"
    if lowered in _WORKLOADS:
        return (
            "Koguma keeps no workloads, only the proxies beside them: `koguma get dataplanes`, and"
            " `koguma get proxies` for those that are connected"
        )
    from koguma.model.legacy_kinds import successor  # noqa: PLC0415 - only for an error

    return successor(word)


def option_advice(command: str, option: str, known: Iterable[str]) -> str:
    """The equivalent or nearest option, or another way; empty where there is none."""
    if (command, option) in _COMMAND_OPTIONS:
        return _COMMAND_OPTIONS[command, option]
    from koguma.model.nearest import nearest  # noqa: PLC0415 - only for an error

    options = tuple(known)
    suggestion = next((name for name in _OPTIONS.get(option, ()) if name in options), None)
    if suggestion is None and option.startswith("--"):
        near = nearest(option[2:], [name[2:] for name in options if name.startswith("--")])
        suggestion = f"--{near}" if near else None
    return f"did you mean {suggestion}?" if suggestion else ""
