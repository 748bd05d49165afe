"""Admin pages: which pages of Envoy's admin interface may be asked for through the control plane.

Only pages that show something, with the parameters that select what they show. The agent checks each request
against this table and writes the address anew, so that no control plane can make it change an Envoy
(`/quitquitquit`, `/logging`), whatever it sends. A page that is not listed does not exist here.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

CONFIG_DUMP: Final = "/config_dump"
STATS: Final = "/stats"
CLUSTERS: Final = "/clusters"
PATH_CHARACTERS_MAX: Final = 4096

_FORMAT: Final = frozenset({"format"})
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    CONFIG_DUMP: frozenset({"include_eds", "mask", "name_regex", "resource"}),
    STATS: frozenset(
        {"filter", "format", "histogram_buckets", "hidden", "text_readouts", "type", "usedonly"}
    ),
    CLUSTERS: frozenset({"filter", "format"}),
    "/listeners": _FORMAT,
    "/server_info": frozenset(),
    "/certs": frozenset(),
}
_JSON_PAGES: Final = (CONFIG_DUMP, "/server_info", "/certs")


class UnknownPage(ValueError):
    """A page, or a parameter of one, that may not be asked for."""


def checked(path: str) -> str:
    """The address of a page, with its parameters, written anew; UnknownPage where it is not allowed."""
    page, _, query = path.partition("?")
    parameters = _PARAMETERS.get(page)
    if parameters is None or len(path) > PATH_CHARACTERS_MAX:
        raise UnknownPage(f"only {', '.join(_PARAMETERS)} can be asked for")
    pairs = parse_qsl(query, keep_blank_values=True)
    unknown = sorted({name for name, _ in pairs} - parameters)
    if unknown:
        choices = ", ".join(sorted(parameters)) or "none"
        raise UnknownPage(f'{page} has no parameter "{unknown[0][:100]}" here; there are {choices}')
    return f"{page}?{urlencode(pairs)}" if pairs else page


def page_of(path: str) -> str:
    """The page that a path is about, without its parameters."""
    return path.partition("?")[0]


def is_json(path: str) -> bool:
    """Whether Envoy answers a path with JSON."""
    page, _, query = path.partition("?")
    return page in _JSON_PAGES or ("format", "json") in parse_qsl(query)
