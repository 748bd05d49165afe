"""Checks: what `koguma check` shows, a line for each part that was looked at."""

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One part that was looked at; `hint` says what to do where it is not fine."""

    name: str
    status: Literal["ok", "warning", "error"]
    message: str
    hint: str = ""
