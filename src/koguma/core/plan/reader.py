"""The reader of a plan: what may be shown to him, and how."""

from collections.abc import Callable
from operator import attrgetter

import msgspec

from koguma.core.lint import visibility
from koguma.core.lint.visibility import Visibility
from koguma.model.resource import Resource


class PlanReader(msgspec.Struct, frozen=True):
    """Who reads a plan: what is shown to him, whether he wants Envoy's fields, and how he calls objects."""

    visible: Visibility = visibility.EVERYTHING
    envoy_fields: bool = False
    name_of: Callable[[Resource], str] = attrgetter("core_name")
    has_reasons: bool = True  # why an object changes nothing; Global leaves that to zones
