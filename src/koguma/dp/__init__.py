"""The proxy agent (`koguma dp run`): the Envoy process, its bootstrap, DNS, readiness, drain, metrics."""

from typing import Final

TOKEN_VARIABLE: Final = "KOGUMA_DATAPLANE_TOKEN"  # noqa: S105 - the name of a variable; Envoy's environment does not have it
