"""Reasons why a kind cannot be written or watched here, for people who try."""

from koguma.application.context import Context
from koguma.model.kind import Kind


def read_only(kind: Kind, context: Context) -> str:
    """Why a kind cannot be written here, and where it can."""
    if kind.read_only:
        return f"{kind.name} is written by the control plane alone"
    other = "a zone" if context.control_plane.is_global else "the Global"
    return f"On this control plane {kind.name} is read-only; write it on {other} control plane"


def unwatchable(kind: Kind) -> str:
    """Why a kind cannot be watched."""
    return f"{kind.name} is computed when it is read, and cannot be watched; ask again"
