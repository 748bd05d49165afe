"""Machine: properties of the proxy's machine that its configuration depends on."""

import socket
import ssl
from pathlib import Path
from typing import Final

# Where distributions keep the system's CA certificates, beside the path that OpenSSL was built with.
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
    """Whether a process can listen on IPv6 here."""
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
    """The content of /etc/resolv.conf; empty where it cannot be read."""
    try:
        return _RESOLV_CONF.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def memory_bytes_max(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """The memory limit of our cgroup; 0 where there is none.

    The smallest limit of the cgroup and its parents counts. Only cgroup v2 is read; elsewhere there is
    --memory-limit.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    group = root / path.strip("/")
    limits = [_memory_limit(parent) for parent in (group, *group.parents) if parent.is_relative_to(root)]
    return min((limit for limit in limits if limit), default=0)


def _memory_limit(group: Path) -> int:
    try:
        text = (group / "memory.max").read_text(encoding="utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdigit() else 0  # "max" is no limit
