"""Which control plane this is: its mode, its zone and what else rules about resources need to know."""

from enum import Enum

import msgspec


class Mode(Enum):
    """What a control plane is for: one zone (alone, or joined to a Global), or all zones."""

    ZONE = "zone"
    GLOBAL = "global"


class ControlPlaneInfo(msgspec.Struct, frozen=True):
    """`zone` is empty on Global; `federated` is a zone that takes part in a Global."""

    mode: Mode = Mode.ZONE
    zone: str = "default"
    federated: bool = False
    system_namespace: str = "kuma-system"
    allow_proxy_data_sources: bool = False  # may a policy make a proxy read its files or environment

    @property
    def is_global(self) -> bool:
        """Whether this is the control plane above all zones."""
        return self.mode is Mode.GLOBAL

    @property
    def origin(self) -> str:
        """The value of `kuma.io/origin` on what is written here."""
        return self.mode.value
