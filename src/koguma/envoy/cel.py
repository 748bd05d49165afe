"""CEL: whether Envoy's formatter accepts an expression, with the reason where it does not.

The grammar is that of the Common Expression Language. Envoy's formatter has only some of its functions and
macros: it rejects expressions that call others, or that have loops (`map`, `exists`). Names of attributes are
not checked: an unknown one has no value, which is legal.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\f\r]+|//[^\n]*)
      | (?P<string>[bB]?(?:
            [rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\r\n]*"|'[^'\r\n]*')
          | \"{3}(?:ESCAPE|[^\\])*?\"{3}|'{3}(?:ESCAPE|[^\\])*?'{3}
          | "(?:ESCAPE|[^"\\\r\n])*"|'(?:ESCAPE|[^'\\\r\n])*'))
      | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
      | (?P<uint>(?:0x[0-9A-Fa-f]+|[0-9]+)[uU])
      | (?P<int>0x[0-9A-Fa-f]+|[0-9]+)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<quoted>`[A-Za-z0-9_./ -]+`)
      | (?P<sign>==|!=|<=|>=|&&|\|\||[<>+\-*/%!?:.,\[\]{}()])
    """.replace(
        "ESCAPE",
        r"""\\(?:[abfnrtv"'`?\\]|[xX][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2})""",
    ),
    re.VERBOSE | re.DOTALL,
)
_LITERAL_KINDS: Final = ("string", "float", "uint", "int")
_LITERAL_WORDS: Final = ("true", "false", "null")
_KEYWORDS: Final = (*_LITERAL_WORDS, "in")
_RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    )
)
_NESTING: Final = ("==", "!=", "<=", ">=", "<", ">", "in", "+", "-", "*", "/", "%")
_IN_A_ROW_MAX: Final = 31
_INT_MAX: Final = 2**63 - 1
_UINT_MAX: Final = 2**64 - 1
_DEPTH_MAX: Final = 33  # of nesting

# The functions and methods of Envoy's formatter, with the numbers of arguments that they take.
_FUNCTIONS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("matches", "contains", "startsWith", "endsWith", "re.capture", "re.captureN"), (2,)),
    **dict.fromkeys(
        ("size", "type", "int", "uint", "double", "bytes", "duration", "timestamp", "bool", "dyn"), (1,)
    ),
    "re.extract": (3,),
}
_METHODS: Final[Mapping[str, tuple[int, ...]]] = {
    "size": (0,),
    **dict.fromkeys(("matches", "contains", "startsWith", "endsWith"), (1,)),
    **dict.fromkeys(
        (
            *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"),
            *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
        ),
        (0, 1),
    ),
}
# The messages that an expression can create.
_MESSAGES: Final = frozenset(
    f"google.protobuf.{name}"
    for name in (
        *("BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value", "StringValue"),
        *(
            "UInt32Value",
            "UInt64Value",
            "Duration",
            "Timestamp",
            "Struct",
            "Value",
            "ListValue",
            "Any",
            "Empty",
        ),
    )
)


class _CelError(Exception):
    """Why an expression is rejected."""


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str


class _Term(msgspec.Struct, frozen=True):
    """A parsed subexpression, as far as what follows depends on it."""

    path: str = ""  # the dotted name that it is, if it is one
    is_selection: bool = False  # whether it is a field of something


_VALUE: Final = _Term()
_END: Final = _Token("end", "")


def problem(text: str) -> str:
    """Why Envoy rejects an expression; empty where it accepts it."""
    try:
        parser = _Parser(_tokens(text))
        parser.expression()
        parser.ended()
    except _CelError as error:
        return str(error)
    return ""


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _CelError(f'has no meaning at "{text[at : at + 20]}"')
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match[0]))
        at = match.end()
    return tokens


class _Parser:
    """A recursive descent parser."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _is(self, *texts: str) -> bool:
        token = self._next
        return token.kind in ("sign", "name") and token.text in texts

    def _took(self, *texts: str) -> bool:
        if not self._is(*texts):
            return False
        self._at += 1
        return True

    def _take(self, text: str) -> None:
        if not self._took(text):
            raise _CelError(f'needs "{text}" {self._place}')

    @property
    def _place(self) -> str:
        return f'before "{self._next.text}"' if self._next.text else "at its end"

    def ended(self) -> None:
        """Raise unless all tokens are consumed."""
        if self._next is not _END:
            raise _CelError(f'ends before "{self._next.text}"')

    def expression(self) -> _Term:
        """A ternary expression, or anything that binds more tightly."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _CelError("is nested too deeply")
        term = self._alternatives()
        if self._took("?"):
            if self._depth + 1 >= _DEPTH_MAX:
                raise _CelError("is nested too deeply")
            self._alternatives()
            self._take(":")
            self.expression()
            term = _VALUE
        self._depth -= 1
        return term

    def _alternatives(self) -> _Term:
        # Precedence does not matter here: every binary operator is between two operands.
        term = self._operand()
        in_a_row = 0  # each of these nests one level deeper; a chain of `&&` or `||` does not
        while self._is("||", "&&", *_NESTING):
            in_a_row = in_a_row + 1 if self._is(*_NESTING) else 0
            if in_a_row > _IN_A_ROW_MAX:
                raise _CelError("is nested too deeply")
            self._at += 1
            self._operand()
            term = _VALUE
        return term

    def _operand(self) -> _Term:
        for sign in ("!", "-"):
            if not self._is_negative_number() and self._took(sign):
                while self._took(sign):
                    pass
                self._member()
                return _VALUE
        return self._member()

    def _is_negative_number(self) -> bool:
        following = self._tokens[self._at + 1 : self._at + 2]
        return self._is("-") and bool(following) and following[0].kind in ("int", "float")

    def _member(self) -> _Term:
        term = self._primary()
        while True:
            if self._took("."):
                term = self._selected(term)
            elif self._took("["):
                self.expression()
                self._take("]")
                term = _VALUE
            elif self._is("{") and term.path:
                self._message(term.path)
                term = _VALUE
            else:
                return term

    def _selected(self, of: _Term) -> _Term:
        token = self._next
        if token.kind not in ("name", "quoted") or token.text in _KEYWORDS:
            raise _CelError(f"needs the name of a field {self._place}")
        self._at += 1
        name = token.text
        path = f"{of.path}.{name}" if of.path else ""
        if token.kind == "name" and self._took("("):
            arguments = self._arguments()
            if path not in _FUNCTIONS or len(arguments) not in _FUNCTIONS[path]:
                _check(name, len(arguments), _METHODS)
            return _VALUE
        return _Term(path, is_selection=True)

    def _primary(self) -> _Term:
        token = self._next
        if token.kind in _LITERAL_KINDS or (token.kind == "name" and token.text in _LITERAL_WORDS):
            return self._literal(negative=False)
        if self._took("-"):  # a number; other signs were consumed by _operand
            if self._next.kind not in ("int", "float"):
                raise _CelError(f"needs a number {self._place}")
            return self._literal(negative=True)
        if self._took("("):
            term = self.expression()
            self._take(")")
            return term
        if self._took("["):
            return self._list()
        if self._took("{"):
            self._entries("}")
            return _VALUE
        self._took(".")
        return self._named()

    def _named(self) -> _Term:
        token = self._next
        if token.kind != "name" or token.text in _KEYWORDS:
            raise _CelError(f"needs a value {self._place}")
        if token.text in _RESERVED:
            raise _CelError(f'has the reserved word "{token.text}"')
        self._at += 1
        if not self._took("("):
            return _Term(token.text)
        arguments = self._arguments()
        if token.text == "has" and len(arguments) == 1:
            if not arguments[0].is_selection:
                raise _CelError("asks has() about something that is no field")
            return _VALUE
        _check(token.text, len(arguments), _FUNCTIONS)
        return _VALUE

    def _literal(self, *, negative: bool) -> _Term:
        token = self._next
        self._at += 1
        if token.kind in ("int", "uint"):
            limit = _UINT_MAX if token.kind == "uint" else _INT_MAX + negative
            if int(token.text.rstrip("uU"), 0 if token.text.startswith("0x") else 10) > limit:
                raise _CelError(f"has the number {token.text}, which is too large")
        return _VALUE

    def _arguments(self) -> list[_Term]:
        arguments: list[_Term] = []
        if self._took(")"):
            return arguments
        arguments.append(self.expression())
        while self._took(","):
            arguments.append(self.expression())
        self._take(")")
        return arguments

    def _list(self) -> _Term:
        while not self._is("]", ","):
            self.expression()
            if not self._took(","):
                break
        self._took(",")
        self._take("]")
        return _VALUE

    def _entries(self, end: str) -> None:
        while not self._is(end, ","):
            self.expression()
            self._take(":")
            self.expression()
            if not self._took(","):
                break
        self._took(",")
        self._take(end)

    def _message(self, path: str) -> None:
        if path not in _MESSAGES:
            raise _CelError(f'makes a message "{path}", which Envoy does not know')
        self._take("{")
        self._entries("}")


def _check(name: str, count: int, known: Mapping[str, Collection[int]]) -> None:
    if name not in known:
        raise _CelError(f'calls "{name}", which Envoy does not have here')
    if count not in known[name]:
        raise _CelError(f'calls "{name}" with {count} arguments')
