"""Match conditions: expressions in CEL that decide whether a webhook is called.

They see `request` (the AdmissionReview's), `object` and `oldObject`, in the version that the webhook gets.
Kubernetes' `authorizer` is not there: an expression that uses it does not compile.
"""

from functools import lru_cache
from typing import Final

from koguma.kube import cel
from koguma.kube.cel import CelError, CelProgram

__all__ = ["VARIABLES", "CelError", "compiled"]

VARIABLES: Final = ("object", "oldObject", "request")


@lru_cache(maxsize=512)
def compiled(expression: str) -> CelProgram:
    """A condition, which must give a boolean; CelError says what is wrong."""
    return cel.compiled(expression, VARIABLES)
