"""Internal kinds: what the control planes of a store keep for each other, and no endpoint serves.

Their names cannot be those of a kind that a package or a custom resource brings, so that nobody gets to read
one by a definition of the same name. They are sealed like Secrets.
"""

from typing import Final

CONTROL_PLANE_CA: Final = "control-plane-ca"  # which issues the certificates of the control planes' ports
CONTROL_PLANE_KEY: Final = "control-plane-key"  # by which control planes know each other
GLOBAL_SEEN: Final = "global-seen"  # which Global a zone got its objects from, and its revision

INTERNAL_KINDS: Final = frozenset({CONTROL_PLANE_CA, CONTROL_PLANE_KEY, GLOBAL_SEEN})
