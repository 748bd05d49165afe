"""Live catalog: the endpoints that are served now, built in or added at run time."""

from koguma.kube import catalog
from koguma.kube.catalog import Catalog
from koguma.kube.registry import KubeEndpoint
from koguma.model.kind import Kinds


class LiveCatalog:
    """Keeps the current catalog; another one takes its place when endpoints come or go."""

    def __init__(self) -> None:
        self._added: tuple[KubeEndpoint, ...] = ()
        self._made: tuple[tuple[KubeEndpoint, ...], Catalog] | None = None

    def current(self, kinds: Kinds) -> Catalog:
        """The catalog as of now; the same one until something changes."""
        made = self._made
        if made is None or made[0] is not self._added:
            new = Catalog(kinds, self._added) if self._added else catalog.of(kinds)
            made = self._made = (self._added, new)
        return made[1]

    def serve(self, endpoint: KubeEndpoint) -> None:
        """Serve one more endpoint from now on, as an alias of a set that is served already."""
        self._added = (*self._added, endpoint)
