"""Output: objects as YAML, which our own reader reads back unchanged, and as JSON."""

import json
from collections.abc import Iterable
from typing import Any

from koguma.model.printed_yaml import yaml_text

Json = Any

__all__ = ["json_text", "yaml_stream", "yaml_text"]


def yaml_stream(values: Iterable[Json]) -> str:
    """Values as a stream of YAML documents."""
    return "---\n".join(yaml_text(value) for value in values)


def json_text(value: Json) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)
