"""Output: objects as the YAML that our own reader reads back the same, and as JSON."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

Json = Any

# Our reader takes more words for numbers than YAML 1.1 does, such as 1e5: as texts they need quotes.
_NUMBER: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Json) -> bool:  # noqa: ARG002 - no `&id001`: people read this
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def yaml_text(value: Json) -> str:
    """One value as YAML, keys in their order."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
    )
    return text.removesuffix("...\n")


def yaml_stream(values: Iterable[Json]) -> str:
    """Values as a stream of YAML documents."""
    return "---\n".join(yaml_text(value) for value in values)


def json_text(value: Json) -> str:
    """A value as JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)
