"""Page: an object as the YAML that people read, and the line of each of its fields.

`koguma get -o yaml` prints this text, so a line that is named here can be found there.
"""

import re
from typing import Final

import yaml

from koguma.model import documents
from koguma.model.schema import Json

_WIDTH: Final = 100
# Our reader takes more words for numbers than YAML 1.1 does, such as 1e5: as texts they need quotes.
_NUMBER: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Json) -> bool:  # noqa: ARG002 - no `&id001`: people read this
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def yaml_text(value: Json) -> str:
    """One value as YAML, keys in their order."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=_WIDTH
    )
    return text.removesuffix("...\n")


class PrintedYaml:
    """An object written out once, to be asked for many lines."""

    def __init__(self, value: Json) -> None:
        text = yaml_text(value)
        self._lines = text.splitlines()
        self._document = documents.load(text)[0]

    def line(self, field: str) -> int:
        """The line of a field, or of the nearest part above it that was written; the first one is 1."""
        line, column = self._document.position(field)
        before = self._lines[line - 1][: column - 1]
        # Objects and lists begin on the line after their key; the field is where the key stands.
        return line if before.strip() or line == 1 else line - 1
