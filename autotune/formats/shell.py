"""Follow a launch script to the command it would start, without running anything.

Assignments, arrays, defaults, arithmetic, ``if``, ``case``, ``for`` and functions are followed.
Commands are only noted. A condition that only a running machine could answer counts as false and
is said.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from autotune.formats.shell_values import Values
from autotune.formats.shell_words import MAX_DEPTH, Token, tokens_of
from simcore.errors import InputError, Issue

MAX_STEPS = 100_000
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\[\w+\])?(\+?)=(.*)\Z", re.S)
_DECLARE = ("export", "declare", "local", "readonly", "typeset")
_OPENERS = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done",
            "{": "}", "(": ")"}
_CLOSERS = frozenset({*_OPENERS.values(), "then", "elif", "else", "do", ";;"})
_NUMERIC = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


@dataclass(frozen=True)
class Command:
    """A command that the script would run, expanded."""

    words: tuple[str, ...]
    line: int


class Script:
    """A script that is being followed; `commands` and `notes` are what comes out."""

    def __init__(self, text: str, where: str, values: Values | None = None,
                 depth: int = 0) -> None:
        if depth > 4:
            raise InputError(Issue(where, "is nested too deeply"))
        self.where = where
        self.tokens = tokens_of(text, where)
        self.values = values or Values(where)
        self.commands: list[Command] = []
        self.notes: list[str] = []
        self.functions: dict[str, int] = {}
        self.steps = 0
        self._run(0, frozenset(), is_live=True, depth=0)

    def _at(self, i: int) -> Token:
        if i >= len(self.tokens):
            raise InputError(Issue(self.where, "ends inside a block (fi, done or esac missing)"))
        return self.tokens[i]

    def _run(self, i: int, until: frozenset[str], *, is_live: bool, depth: int) -> int:
        """Follow commands to one of the closing words; return its index."""
        if depth > MAX_DEPTH:
            raise InputError(Issue(self.where, "is nested too deeply"))
        status: bool | None = True
        joined = ""
        while i < len(self.tokens):
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise InputError(Issue(self.where, "takes too many steps to follow"))
            token = self.tokens[i]
            if token.text in until and (not token.is_operator or token.text in (")", ";;")):
                return i
            if token.is_operator and token.text != "(":
                joined = token.text if token.text in ("&&", "||") else (
                    joined if token.text == ";" and self.tokens[i - 1].text in ("&&", "||")
                    else "")
                i += 1
                continue
            goes = is_live and (joined != "&&" or status is True) and (
                joined != "||" or status is not True)
            joined = ""
            i, result = self._one(i, is_live=goes, depth=depth)
            status = result if goes else status
        if until:
            raise InputError(Issue(self.where, f"'{sorted(until)[0]}' is missing at the end"))
        return i

    def _one(self, i: int, *, is_live: bool, depth: int) -> tuple[int, bool | None]:
        """Follow one command or block; return the index behind it and its status."""
        word = self.tokens[i].text
        if word == "if":
            return self._if(i + 1, is_live=is_live, depth=depth), True
        if word == "case":
            return self._case(i + 1, is_live=is_live, depth=depth), True
        if word in ("for", "while", "until"):
            return self._loop(i, is_live=is_live, depth=depth), True
        if word in ("{", "("):
            end = self._run(i + 1, frozenset((_OPENERS[word],)), is_live=is_live, depth=depth + 1)
            return end + 1, True
        name = re.fullmatch(r"[\w-]+", word)
        if word == "function" or (name and i + 2 < len(self.tokens)
                                  and self.tokens[i + 1].text == "("
                                  and self.tokens[i + 2].text == ")"):
            return self._define(i, depth=depth), True
        if word in _CLOSERS:
            raise InputError(Issue(f"{self.where}: line {self.tokens[i].line}",
                                   f"'{word}' stands without its beginning"))
        end = i
        while not self._at(end).is_operator:
            end += 1
        return end, self._simple(self.tokens[i:end], depth) if is_live else True

    def _define(self, i: int, *, depth: int) -> int:
        named = i + (self.tokens[i].text == "function")
        body = named + 1
        while self._at(body).text != "{":
            if self.tokens[body].text not in ("(", ")", ";"):
                raise InputError(Issue(f"{self.where}: line {self.tokens[body].line}",
                                       "a function's body must stand in { }"))
            body += 1
        self.functions[self.tokens[named].text] = body + 1
        return self._run(body + 1, frozenset("}"), is_live=False, depth=depth + 1) + 1

    def _if(self, i: int, *, is_live: bool, depth: int) -> int:
        done = not is_live
        while True:
            start = i
            i = self._run(i, frozenset(("then",)), is_live=False, depth=depth + 1)
            holds = False if done else self._condition(start, i, depth)
            i = self._run(i + 1, frozenset(("elif", "else", "fi")), is_live=holds,
                          depth=depth + 1)
            done = done or holds
            word = self.tokens[i].text
            if word == "else":
                i = self._run(i + 1, frozenset(("fi",)), is_live=not done, depth=depth + 1)
            if word != "elif":
                return i + 1
            i += 1

    def _condition(self, start: int, end: int, depth: int) -> bool:
        status: bool | None = True
        joined = ""
        i = start
        while i < end:
            token = self.tokens[i]
            if token.is_operator and token.text != "(":
                joined = token.text if token.text in ("&&", "||") else joined
                i += 1
                continue
            goes = (joined != "&&" or status is True) and (joined != "||" or status is not True)
            i, result = self._one(i, is_live=goes, depth=depth + 1)
            status = result if goes else status
        if status is None:
            text = " ".join(t.text for t in self.tokens[start:end] if t.text != ";")
            self.notes.append(f"line {self.tokens[start].line}: the condition {text[:80]} can "
                              "only be answered where the script runs; taken as false")
        return status is True

    def _case(self, i: int, *, is_live: bool, depth: int) -> int:
        subject = self.values.unset_as_empty(" ".join(self.values.expand(self._at(i).text)))
        i += 1
        while self._at(i).text in (";", "in"):
            i += 1
        done = not is_live
        while self._at(i).text != "esac":
            patterns = []
            while self._at(i).text != ")":
                if self.tokens[i].text not in ("|", "(", ";"):
                    patterns += self.values.expand(self.tokens[i].text)
                i += 1
            holds = not done and subject is not None and any(
                fnmatch.fnmatchcase(subject, p[:200]) for p in patterns)
            done = done or holds
            i = self._run(i + 1, frozenset((";;", "esac")), is_live=holds, depth=depth + 1)
            while self._at(i).text in (";;", ";"):
                i += 1
        return i + 1

    def _loop(self, i: int, *, is_live: bool, depth: int) -> int:
        word, line = self.tokens[i].text, self.tokens[i].line
        start = self._run(i + 1, frozenset(("do",)), is_live=False, depth=depth + 1) + 1
        head = [t.text for t in self.tokens[i + 1:start - 1] if not t.is_operator]
        end = self._run(start, frozenset(("done",)), is_live=False, depth=depth + 1)
        if is_live and word == "for" and head[1:2] == ["in"]:
            for value in [v for raw in head[2:] for v in self.values.expand(raw)]:
                self.values.variables[head[0]] = value
                self._run(start, frozenset(("done",)), is_live=True, depth=depth + 1)
        elif is_live:
            self.notes.append(f"line {line}: the loop is not followed")
        return end + 1

    def _simple(self, tokens: list[Token], depth: int) -> bool | None:
        """Follow assignments and builtins; note any other command."""
        rest = list(tokens)
        while rest and _ASSIGN.match(rest[0].text):
            self._assign(rest.pop(0).text)
        if not rest:
            return True
        line, first = rest[0].line, rest[0].text
        if first in ("[", "[[", "test"):
            asked = [self.values.unset_as_empty(" ".join(self.values.expand(t.text)))
                     for t in rest[1:]]
            return truth([w for w in asked if w not in ("]", "]]")])
        if first in _DECLARE:
            for token in rest[1:]:
                if _ASSIGN.match(token.text):
                    self._assign(token.text)
            return True
        if first.startswith("(("):
            done = self.values.expand("$" + first)[0]
            return bool(int(done)) if done.lstrip("-").isdigit() else None
        words = tuple(w for token in rest for w in self.values.expand(token.text))
        if not words:
            return True
        return self._command(words, line, depth)

    def _command(self, words: tuple[str, ...], line: int, depth: int) -> bool | None:
        first = words[0]
        if first == "set" and "--" in words:
            self.values.arguments = list(words[words.index("--") + 1:])
        elif first == "shift":
            del self.values.arguments[:1]
        elif first == "unset":
            for name in words[1:]:
                self.values.variables.pop(name, None)
        elif first in ("source", "."):
            self.notes.append(f"line {line}: {' '.join(words)[:80]} is not read")
        elif first in self.functions:
            kept = self.values.arguments
            self.values.arguments = list(words[1:])
            self._run(self.functions[first], frozenset("}"), is_live=True, depth=depth + 1)
            self.values.arguments = kept
        elif first in ("true", "false"):
            return first == "true"
        else:
            self.commands.append(Command(words, line))
            return None
        return True

    def _assign(self, raw: str) -> None:
        found = _ASSIGN.match(raw)
        if not found:
            return
        name, index, plus, text = found[1], found[2], found[3], found[4]
        held = self.values.variables.get(name)
        if text.startswith("(") and text.endswith(")"):
            items = [w for t in tokens_of(text[1:-1], self.where) if not t.is_operator
                     for w in self.values.expand(t.text)]
            before = held if isinstance(held, list) else [] if held is None else [held]
            self.values.variables[name] = [*before, *items] if plus else items
            return
        value = " ".join(self.values.expand(text if '"' in text or "'" in text
                                            else f'"{text}"'))
        if index:
            self.values.variables[name] = [*(held if isinstance(held, list) else []), value]
        elif plus and isinstance(held, str):
            self.values.variables[name] = held + value
        else:
            self.values.variables[name] = value


def truth(words: list[str | None]) -> bool | None:
    """Answer a test; None where it asks what only a running machine knows."""
    for joint in ("||", "-o", "&&", "-a"):
        if joint in words:
            i = words.index(joint)
            left, right = truth(words[:i]), truth(words[i + 1:])
            if joint in ("||", "-o"):
                return True if True in (left, right) else None if None in (left, right) else False
            return False if False in (left, right) else None if None in (left, right) else True
    if words[:1] == ["!"]:
        inner = truth(words[1:])
        return None if inner is None else not inner
    if any(w is None for w in words):
        return None
    texts = [str(w) for w in words]
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) == 1:
        return texts[0] != ""
    if len(texts) != 3:
        return None
    if texts[1] in ("=", "==", "!="):
        return fnmatch.fnmatchcase(texts[0], texts[2]) == (texts[1] != "!=")
    return _numeric(*texts)


def _numeric(left: str, operator: str, right: str) -> bool | None:
    try:
        a, b = int(left or 0), int(right or 0)
    except ValueError:
        return None
    match _NUMERIC.get(operator):
        case "==":
            return a == b
        case "!=":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case _:
            return None
