"""Redacted: a text that must not be seen, such as a token or a private key.

It prints itself as `«redacted»`, cannot be pickled, and no encoder of ours knows it, so that a secret
gets into a log, a traceback or an answer only where somebody wrote `.reveal()`.
"""

import hmac
import re
from typing import Final, NoReturn, final

SHOWN: Final = "«redacted»"


@final
class Redacted:
    """Holds a secret text; only `reveal` gives it out."""

    __slots__ = ("__text",)
    __text: str

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_Redacted__text", text)

    def reveal(self) -> str:
        """The text itself."""
        return self.__text

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a redacted text does not change")

    def __repr__(self) -> str:
        return SHOWN

    def __str__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return SHOWN

    def __eq__(self, other: object) -> bool:
        # In constant time: how long a comparison takes must not tell how much of a guess was right.
        if not isinstance(other, Redacted):
            return NotImplemented
        return hmac.compare_digest(_bytes(self.__text), _bytes(other.reveal()))

    def __hash__(self) -> int:
        return hash(self.__text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a redacted text cannot be pickled")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def masked_url(url: str) -> str:
    """The address with its password hidden, even where it is written so badly that it cannot be read."""
    url = re.sub(r"(://[^:/@?]*):.*@", r"\1:*****@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1*****", url)
