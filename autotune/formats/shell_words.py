"""Split a shell script into tokens without running anything.

A token is a word as written (quotes and ``$`` kept), an operator, or a line end. Only the
constructs that launch scripts use are known; what a word means is `autotune.formats.shell`'s work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simcore.errors import InputError, Issue

MAX_BYTES = 1 << 20
MAX_TOKENS = 200_000
MAX_DEPTH = 40
_OPERATORS = (";;", "&&", "||", ";", "|", "&", "(", ")")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\Z")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_CLOSER = {"(": ")", "{": "}"}


@dataclass(frozen=True)
class Token:
    """A word as written, an operator or a line end.

    Parameters
    ----------
    text : str
    line : int
    is_operator : bool
        Whether it ends a word by itself; a line end is the operator ``;``.
    """

    text: str
    line: int
    is_operator: bool = False


def quoted_end(text: str, start: int, line: int, where: str) -> int:
    """Index behind a quoted piece that starts at `start`."""
    quote, i = text[start], start + 1
    while i < len(text) and text[i] != quote:
        if quote == '"' and text[i] == "$" and text[i + 1:i + 2] in _CLOSER:
            i = balanced_end(text, i + 1, line, where)
            continue
        i += 2 if quote != "'" and text[i] == "\\" else 1
    if i >= len(text):
        raise InputError(Issue(f"{where}: line {line}", f"a {quote} is never closed"))
    return i + 1


def balanced_end(text: str, start: int, line: int, where: str, depth: int = 0) -> int:
    """Index behind the bracket that closes the one at `start`."""
    if depth > MAX_DEPTH:
        raise InputError(Issue(f"{where}: line {line}", "is nested too deeply"))
    opener, i = text[start], start + 1
    while i < len(text):
        char = text[i]
        if char == _CLOSER[opener]:
            return i + 1
        if char == "\\":
            i += 2
        elif char in "'\"" and not (opener == "{" and char == "'"):
            i = quoted_end(text, i, line, where)
        elif char == opener or (char == "$" and text[i + 1:i + 2] in _CLOSER):
            i = balanced_end(text, i + (char == "$"), line, where, depth + 1)
        elif char == "#" and opener == "(" and text[i - 1] in " \t\n(":
            end = text.find("\n", i)
            i = len(text) if end < 0 else end
        else:
            i += 1
    raise InputError(Issue(f"{where}: line {line}", f"a {opener} is never closed"))


class Lexer:
    """Reads tokens from a script's text."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.i, self.line = 0, 1
        self.tokens: list[Token] = []
        self.heredocs: list[str] = []

    def run(self) -> list[Token]:
        """Return all tokens; a line end stands as ``;``."""
        while self.i < len(self.text):
            if len(self.tokens) > MAX_TOKENS:
                raise InputError(Issue(self.where, f"holds more than {MAX_TOKENS} words"))
            self._step()
        self._add(";", is_operator=True)
        return self.tokens

    def _add(self, text: str, *, is_operator: bool = False) -> None:
        self.tokens.append(Token(text, self.line, is_operator))

    def _step(self) -> None:
        text, i = self.text, self.i
        char = text[i]
        if text.startswith("\\\n", i):
            self.i, self.line = i + 2, self.line + 1
        elif char == "\n":
            self._add(";", is_operator=True)
            self.i, self.line = i + 1, self.line + 1
            self._skip_heredocs()
        elif char in " \t\r":
            self.i += 1
        elif char == "#":
            end = text.find("\n", i)
            self.i = len(text) if end < 0 else end
        elif text.startswith("((", i):
            end = balanced_end(text, i, self.line, self.where)
            self._word(end)
        elif (found := _HEREDOC.match(text, i)) and not text.startswith("<<<", i):
            self.heredocs.append(found[2])
            self.i = found.end()
        elif redirect := re.compile(r"\d*(&>>?|>>?&?|<&?|<<<)\s*").match(text, i):
            self.i = redirect.end()
            if self.i < len(text) and text[self.i] not in "\n;|":
                self.i = self._word_end()
        else:
            operator = next((o for o in _OPERATORS if text.startswith(o, i)), None)
            if operator:
                self._add(operator, is_operator=True)
                self.i += len(operator)
            else:
                self._word(self._word_end())

    def _word(self, end: int) -> None:
        raw = self.text[self.i:end]
        self._add(raw)
        self.line += raw.count("\n")
        self.i = end

    def _word_end(self) -> int:
        text, i = self.text, self.i
        while i < len(text):
            char = text[i]
            if char == "\\":
                i += 2
            elif char in "'\"`":
                i = quoted_end(text, i, self.line, self.where)
            elif char == "$" and text[i + 1:i + 2] in _CLOSER:
                i = balanced_end(text, i + 1, self.line, self.where)
            elif char == "(" and _ARRAY.search(text, self.i, i):
                return balanced_end(text, i, self.line, self.where)
            elif char in " \t\r\n;|&()<>":
                break
            else:
                i += 1
        return max(min(i, len(text)), self.i + 1)

    def _skip_heredocs(self) -> None:
        for name in self.heredocs:
            found = re.compile(rf"^\t*{re.escape(name)}[ \t]*$", re.M).search(self.text, self.i)
            end = found.end() if found else len(self.text)
            self.line += self.text.count("\n", self.i, end)
            self.i = end
        self.heredocs.clear()


def tokens_of(text: str, where: str) -> list[Token]:
    """Split a script into tokens.

    Raises
    ------
    InputError
        It is too long, nested too deeply, or a quote or bracket is never closed.
    """
    if len(text) > MAX_BYTES:
        raise InputError(Issue(where, f"is longer than {MAX_BYTES} characters"))
    return Lexer(text, where).run()
