"""Placeholder: what stands in an object for a secret text that the reader may not see.

It carries a hash of the text, and may be written back: it then means the text that is stored there.
"""

import base64
import binascii
import re
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\*{5}\([0-9a-f]{16}\)")


def of_hash(digits: str, *, is_base64: bool) -> str:
    """The placeholder with a hash; base64 where typed clients decode that."""
    text = f"*****({digits[:16]})"
    return base64.b64encode(text.encode()).decode() if is_base64 else text


def is_placeholder(text: str) -> bool:
    """Whether a text is a placeholder, as it is or in base64."""
    if _PLACEHOLDER.fullmatch(text):
        return True
    try:
        return _PLACEHOLDER.fullmatch(base64.b64decode(text, validate=True).decode()) is not None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return False
