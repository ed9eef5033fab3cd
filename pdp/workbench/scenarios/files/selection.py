"""Which scenarios are run: words of their names with `and`, `or`, `not` and brackets, as pytest's `-k` has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    Test = Callable[[str], bool]

_TOKEN: Final = re.compile(r"\s*(?:([()])|([^\s()]+))")
_DEEPEST: Final = 50
_HOW: Final = "write words of names with and, or, not and brackets: 'wire and not limit'"


def selection(expression: str) -> Callable[[str], bool]:
    """Return the function that tells whether a name is selected; capital and small letters are the same.

    Raises:
        UsageError: the expression is none.
    """
    parser = _Parser(expression)
    test = parser.either(0)
    if parser.token is not None:
        raise parser.error()
    return lambda name: test(name.lower())


class _Parser:
    """Reads `or` of `and` of `not` of words and brackets."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._rest = _TOKEN.finditer(expression)
        self.token: str | None = None
        self._next()

    def error(self) -> UsageError:
        where = "its end" if self.token is None else repr(self.token)[:60]
        return UsageError(f"-k: {self._text!r:.80} is no expression: at {where}", hint=_HOW)

    def either(self, depth: int) -> Test:
        tests = [self._both(depth)]
        while self._took("or"):
            tests.append(self._both(depth))
        return tests[0] if len(tests) == 1 else lambda name: any(test(name) for test in tests)

    def _both(self, depth: int) -> Test:
        tests = [self._one(depth)]
        while self._took("and"):
            tests.append(self._one(depth))
        return tests[0] if len(tests) == 1 else lambda name: all(test(name) for test in tests)

    def _one(self, depth: int) -> Test:
        if depth > _DEEPEST or self.token in (None, ")", "and", "or"):
            raise self.error()
        if self._took("not"):
            test = self._one(depth + 1)
            return lambda name: not test(name)
        if self._took("("):
            test = self.either(depth + 1)
            if not self._took(")"):
                raise self.error()
            return test
        word = str(self.token).lower()
        self._next()
        return lambda name: word in name

    def _took(self, token: str) -> bool:
        if self.token != token:
            return False
        self._next()
        return True

    def _next(self) -> None:
        match = next(self._rest, None)
        self.token = None if match is None else match[1] or match[2]
