"""Examples: the examples at the end of each command's help.

They are in one place, so that they use the same names and a test can run all of them. A command with longer
examples has its own.
"""

from collections.abc import Mapping
from typing import Final

import click

_TITLE: Final = "Examples:"
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "cp": ("koguma cp run",),
    "cp run": (
        "koguma cp run",
        "koguma cp run --zone-name east --store postgresql://koguma@db/mesh --store-key-file store.key",
        "koguma cp run --config-file koguma.yaml --print-config",
    ),
    "dp": ("koguma dp run --name web-1 --service web --port 10080 --service-port 8080 --protocol http",),
    "dp install": ("koguma dp install transparent-proxy --kuma-dp-user koguma-dp",),
    "dp uninstall": ("koguma dp uninstall transparent-proxy",),
    "dp uninstall transparent-proxy": (
        "koguma dp uninstall transparent-proxy --dry-run",
        "koguma dp uninstall transparent-proxy",
    ),
    "apply": (
        "koguma apply -f shop.yaml",
        "koguma apply -f shop/ --dry-run",
        "koguma get mt -m shop -o yaml | koguma apply -f -",
        "koguma apply -f shop/ --set shop --prune",
        "koguma apply -f shop.yaml --reason 'the new release'",
        "koguma apply -f shop.yaml --wait --timeout 1m",
    ),
    "wait": (
        "koguma wait",
        "koguma wait meshtimeout/backend-is-quick -m shop --timeout 1m",
    ),
    "describe": (
        "koguma describe meshtimeout backend-is-quick -m shop",
        "koguma describe kri_mt_shop___backend-is-quick_",
    ),
    "diff": (
        "koguma diff -f shop.yaml",
        "koguma diff -f shop/ --set shop --prune",
        "koguma diff 41 57",
        "koguma diff 2h",
    ),
    "plan": (
        "koguma plan -f shop.yaml",
        "koguma plan -f shop/ --set shop --prune -o markdown",
        "koguma plan --delete meshtimeout/backend-is-quick -m shop",
        "koguma plan --base main/ -f branch/ --prune",
    ),
    "lint": (
        "koguma lint -f shop/",
        "koguma lint -f shop.yaml --live",
        "koguma lint --live",
    ),
    "inspect": (
        "koguma inspect dataplane web-1 -m shop",
        "koguma inspect policy meshtimeout backend-is-quick -m shop",
        "koguma inspect service backend -m shop",
    ),
    "inspect dataplane": (
        "koguma inspect dataplane web-1 -m shop",
        "koguma inspect dataplane web-1 -o json",
        "koguma inspect dataplane web-1 --type clusters",
        "koguma inspect dataplane web-1 --type config-dump --include-eds",
        "koguma inspect dataplane web-1 --type config --at 2h",
    ),
    "inspect policy": (
        "koguma inspect policy meshtimeout backend-is-quick -m shop",
        "koguma inspect policy mtp allow-web -o json",
    ),
    "inspect service": ("koguma inspect service backend -m shop",),
    "inspect meshgateway": ("koguma inspect meshgateway edge -m shop",),
    "inspect zoneegress": (
        "koguma inspect zoneegress egress-1",
        "koguma inspect zoneegress egress-1 --type stats",
    ),
    "top": (
        "koguma top",
        "koguma top proxies -m shop --interval 5",
        "koguma top services backend -m shop --once -o json",
    ),
    "can": (
        "koguma can web backend -m shop",
        "koguma can web backend --path /v2 --method POST --header x-beta:true -m shop",
        "koguma can outside edge --host shop.example.com --port 443 -m shop",
        "koguma can web backend -f shop/ -m shop",
    ),
    "test": ("koguma test shop/", "koguma test shop/ --quiet --junit build/policies.xml"),
    "explain": (
        "koguma explain dataplane web-1 --to backend -m shop",
        "koguma explain zoneegress egress-1 --envoy clusters",
    ),
    "explain dataplane": (
        "koguma explain dataplane web-1 --to backend -m shop",
        "koguma explain dataplane web-1 --to backend --field http.requestTimeout -m shop",
        "koguma explain dataplane web-1 --to backend --kind MeshRetry -f shop/",
    ),
    "explain zoneegress": (
        "koguma explain zoneegress egress-1 --envoy clusters",
        "koguma explain zoneegress egress-1 --envoy 'clusters[kri_extsvc_shop_default__api_443]' -f shop/",
    ),
    "explain zoneingress": (
        "koguma explain zoneingress ingress-1 --envoy endpoints",
        "koguma explain zoneingress ingress-1 --envoy 'endpoints[kri_msvc_shop_default__backend_http]'",
    ),
    "delete": (
        "koguma delete meshtimeout backend-is-quick -m shop",
        "koguma delete -f shop.yaml --ignore-not-found",
        "koguma delete mesh shop --dry-run",
    ),
    "history": (
        "koguma history",
        "koguma history meshtimeout backend-is-quick -m shop",
        "koguma history --since 2h --by dora -o wide",
    ),
    "undo": ("koguma undo 57 --dry-run", "koguma undo 57 --reason 'it denied too much'"),
    "export": ("koguma export -o backup.jsonl", "koguma export -o - | gzip > backup.jsonl.gz"),
    "import": (
        "koguma import backup.jsonl --dry-run",
        "koguma import backup.jsonl --prune",
        "gunzip -c backup.jsonl.gz | koguma import -",
    ),
    "migrate": ("koguma migrate storage",),
    "migrate storage": ("koguma migrate storage --dry-run", "koguma migrate storage"),
    "kinds": ("koguma kinds",),
    "kri": ("koguma kri parse kri_mt_shop___backend-is-quick_",),
    "kri parse": (
        "koguma kri parse kri_mt_shop___backend-is-quick_",
        "koguma kri parse kri_msvc_shop_east__backend_http -o json",
    ),
    "kri build": ("koguma kri build --type meshtimeout -m shop --name backend-is-quick",),
    "zone": ("koguma zone join --global-address grpcs://global:5685 --zone-token-file east.token --dry-run",),
    "zone join": (
        "koguma zone join --global-address grpcs://global:5685 --zone-token-file east.token --dry-run",
        "koguma zone join --global-address grpcs://global:5685 --zone-token-file east.token --write cp.yaml",
    ),
    "zone leave": ("koguma zone leave --keep --dry-run", "koguma zone leave --remove"),
    "token": (
        "koguma token user --name dora --group developers --valid-for 24h",
        "koguma token dataplane -m shop --name web-1 --service web > web-1.token",
        "koguma token inspect web-1.token",
    ),
    "token user": (
        "koguma token user --name dora --group developers --valid-for 24h > dora.token",
        "koguma token user --name ci --group mesh-system:admin --valid-for 720h",
    ),
    "token dataplane": (
        "koguma token dataplane -m shop --name web-1 --service web --valid-for 720h > web-1.token",
        "koguma token dataplane -m shop --service web --tag version=v1 --valid-for 720h",
    ),
    "token zone": ("koguma token zone --zone east --scope ingress --scope egress --valid-for 720h",),
    "token revoke": (
        "koguma token revoke user - < dora.token",
        "koguma token revoke dataplane 6d8a4763-dac3-4509-918f-3df379ca803a -m shop",
    ),
    "config": (
        "koguma config add prod --address https://mesh.example:5682 --ca-file ca.pem --token-file token",
        "koguma config use prod",
    ),
    "config contexts": ("koguma config contexts",),
    "config add": (
        "koguma config add prod --address https://mesh.example:5682 --ca-file ca.pem --token-file token",
    ),
    "config use": ("koguma config use prod",),
    "config remove": ("koguma config remove prod",),
    "config view": ("koguma config view",),
    "check": (
        "koguma check",
        "koguma check --address https://mesh.example:5682 --ca-file ca.pem --token-file token -o json",
    ),
    "version": ("koguma version", "koguma version --client"),
    "completion": (
        "source <(koguma completion bash)",
        "source <(koguma completion zsh)",
        "koguma completion fish | source",
    ),
}
ROOT: Final = (
    "koguma cp run",
    "koguma apply -f shop.yaml",
    "koguma get proxies -A",
    "koguma explain dataplane web-1 --to backend -m shop",
)


def text(lines: tuple[str, ...]) -> str:
    """The examples as click prints them: as they are, without wrapping."""
    return "\n".join(("\b", _TITLE, *(f"  {line}" for line in lines)))


def attach(command: click.Command, path: str) -> None:
    """Give a command and those below it the examples that they do not have themselves."""
    if path in EXAMPLES and _TITLE not in (command.epilog or ""):
        command.epilog = "\n\n".join(filter(None, (text(EXAMPLES[path]), command.epilog)))
    for name, below in command.commands.items() if isinstance(command, click.Group) else ():
        attach(below, f"{path} {name}")
