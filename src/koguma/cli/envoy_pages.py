"""Envoy pages: what the Envoy of a proxy shows, as `koguma inspect` prints it."""

from collections.abc import Mapping
from typing import Any, Final

from koguma.cli import output, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError

CONFIG_DUMP: Final = "config-dump"
# By the word of --type, as in kumactl: the last part of the path.
PAGES: Final[Mapping[str, str]] = {CONFIG_DUMP: "xds", "stats": "stats", "clusters": "clusters"}


def show(client: ApiClient, proxy: str, about: str, page: str, *, include_eds: bool, is_json: bool) -> None:
    """Print a page of the proxy at a path; a config dump is JSON in any case."""
    query = [("include_eds", "true")] if include_eds else []
    query += [("format", "json")] if is_json and page != CONFIG_DUMP else []
    try:
        value: Any = client.get(f"{proxy}/{PAGES[page]}", query).value
    except ApiError as error:
        raise error.about(about) from None
    text = value.rstrip() if isinstance(value, str) else output.json_text(value)
    for line in text.splitlines():
        print(terminal.printable(line))  # a proxy says what is in it
