"""Machine: what a proxy's machine is like, as far as its configuration depends on it."""

import socket
import ssl
from pathlib import Path
from typing import Final

# Where distributions keep the CAs that everybody trusts, beside the place that OpenSSL was built with.
_CA_FILES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_RESOLV_CONF: Final = Path("/etc/resolv.conf")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")


def has_ipv6() -> bool:
    """Whether anything can listen on IPv6 here."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def ca_file() -> str:
    """The file with the system's CAs; empty where none is found."""
    candidates = (ssl.get_default_verify_paths().cafile or "", *_CA_FILES)
    return next((path for path in candidates if path and Path(path).is_file()), "")


def resolv_conf() -> str:
    """What the machine says about its name servers."""
    try:
        return _RESOLV_CONF.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def memory_bytes_max(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """The memory beyond which the kernel ends processes of our cgroup; 0 where nothing limits it.

    The smallest limit on the way to the root counts. Only cgroup v2 is asked; elsewhere there is the flag.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    group = root / path.strip("/")
    limits = [_memory_limit(each) for each in (group, *group.parents) if each.is_relative_to(root)]
    return min((limit for limit in limits if limit), default=0)


def _memory_limit(group: Path) -> int:
    try:
        text = (group / "memory.max").read_text(encoding="utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdigit() else 0  # "max" is none
