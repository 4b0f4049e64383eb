"""Formulas that a user writes over the figures of a system: numbers, names, + - * / ** and a few
functions, and nothing that could do anything else."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from simcore.errors import InputError, Issue, nearest

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.Pow: operator.pow}
_COMPARE: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.LtE: operator.le, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.Gt: operator.gt}
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min, "max": max, "sqrt": math.sqrt, "log": math.log, "log2": math.log2,
    "exp": math.exp, "ceil": math.ceil}
MAX_LENGTH = 2000


class Formula:
    """A formula that was checked.

    Parameters
    ----------
    text : str
    where : str
        Key path for messages.
    names : iterable of str
        What it may name.
    is_condition : bool
        Whether it is a comparison, such as ``area <= 800``.

    Raises
    ------
    InputError
        It cannot be read, or names something that is not known.
    """

    def __init__(self, text: str, *, where: str, names: frozenset[str],
                 is_condition: bool = False) -> None:
        self.text, self.where = text, where
        if len(text) > MAX_LENGTH:
            raise InputError(Issue(where, f"is longer than {MAX_LENGTH} characters"))
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(Issue(where, f"'{text[:80]}' is no formula",
                                   "write it as 2000 + 6.5 * peak_bf16_tflops")) from error
        is_comparison = isinstance(tree, ast.Compare)
        if is_comparison != is_condition:
            raise InputError(Issue(where, f"'{text[:80]}' must " + (
                "compare, such as area <= 800" if is_condition else "be a number's formula")))
        self._tree = tree
        parts = [tree.left, *tree.comparators] if isinstance(tree, ast.Compare) else [tree]
        for part in parts:
            self._check(part, names)
        if isinstance(tree, ast.Compare) and not all(type(op) in _COMPARE for op in tree.ops):
            raise InputError(Issue(where, "compares by <=, <, >= or > only"))

    def _check(self, node: ast.expr, names: frozenset[str]) -> None:
        match node:
            case ast.Constant(value=value) if isinstance(value, (int, float)) and not isinstance(
                    value, bool):
                return
            case ast.Name(id=name):
                if name not in names:
                    raise InputError(Issue(self.where, f"names '{name[:60]}', which is not known",
                                           nearest(name, sorted(names))))
            case ast.BinOp(left=left, right=right, op=op) if type(op) in _BINARY:
                self._check(left, names)
                self._check(right, names)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand, names)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                for argument in args:
                    self._check(argument, names)
            case _:
                raise InputError(Issue(
                    self.where, f"'{ast.unparse(node)[:60]}' is not understood",
                    f"use numbers, names, + - * / ** and {', '.join(FUNCTIONS)}"))

    def __call__(self, values: Mapping[str, float]) -> float:
        """Evaluate.

        Raises
        ------
        InputError
            No finite number comes out.
        """
        try:
            if isinstance(self._tree, ast.Compare):
                sides = [self._value(n, values)
                         for n in (self._tree.left, *self._tree.comparators)]
                return float(all(_COMPARE[type(op)](a, b) for op, a, b in zip(
                    self._tree.ops, sides, sides[1:], strict=False)))
            found = float(self._value(self._tree, values))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise InputError(Issue(self.where, f"'{self.text[:80]}' has no value: {error}")
                             ) from error
        if not math.isfinite(found):
            raise InputError(Issue(self.where, f"'{self.text[:80]}' is not finite"))
        return found

    def excess(self, values: Mapping[str, float]) -> float:
        """Return by how much a condition is broken; at most zero where it holds."""
        if not isinstance(self._tree, ast.Compare):
            return 0.0
        sides = [self._value(n, values) for n in (self._tree.left, *self._tree.comparators)]
        return max(float(a - b if type(op) in (ast.LtE, ast.Lt) else b - a)
                   for op, a, b in zip(self._tree.ops, sides, sides[1:], strict=False))

    def _value(self, node: ast.expr, values: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=value):
                return float(value)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return float(values[name])
            case ast.BinOp(left=left, right=right, op=op):
                return _BINARY[type(op)](self._value(left, values), self._value(right, values))
            case ast.UnaryOp(operand=operand):
                return -self._value(operand, values)
            case ast.Call(func=ast.Name(id=name), args=args):
                return float(FUNCTIONS[name](*(self._value(a, values) for a in args)))
        raise InputError(Issue(self.where, "is not understood"))
