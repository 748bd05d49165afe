"""Beside a service: the Envoy process, its bootstrap, DNS, readiness, drain."""

from typing import Final

TOKEN_VARIABLE: Final = "KOGUMA_DATAPLANE_TOKEN"  # noqa: S105 - a variable's name; Envoy is started without it
