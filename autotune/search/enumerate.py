"""Every legal candidate of a grid, in chunks, and a tally of the others.

Axes are joined one after the other. As soon as every field that a rule reads is known, the
rule is applied, so that a combination is refused before what follows multiplies it. What is
refused is counted in leaves of the whole grid, so that legal and refused ones add up to it.
Rows keep lexicographic order, whatever the chunk size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from autotune.search.auto import DERIVED_FROM
from autotune.search.axes import Axis, Grid
from autotune.search.engine import Engine, RuleLike
from autotune.search.problem import Problem
from simcore.batch import CHUNK, Batch
from simcore.errors import Issue
from simcore.inputs.fields import UNSET
from simcore.typing import BoolArray, FloatArray, IntArray

_TABLE = 1 << 16
"""Combinations up to which a table finds the distinct ones faster than sorting."""
PARTS_FROM = 64
"""Rows from which a level can be shared out over parts."""


@dataclass(frozen=True)
class Block:
    """Rows of partial strategies.

    Parameters
    ----------
    columns : mapping of str to ndarray, shape (size,)
        Codes of the fields that axes have set so far.
    size : int
    """

    columns: Mapping[str, FloatArray]
    size: int

    def take(self, index: IntArray | BoolArray | slice) -> Block:
        """Return the rows that an index, a mask or a slice names."""
        size = len(np.empty(self.size, np.bool_)[index])
        return Block({k: c[index] for k, c in self.columns.items()}, size)


def concat(blocks: list[Block]) -> Block:
    """Put blocks with the same columns one behind the other."""
    if len(blocks) == 1:
        return blocks[0]
    names = blocks[0].columns
    return Block({k: np.concatenate([b.columns[k] for b in blocks]) for k in names},
                 sum(b.size for b in blocks))


@dataclass
class Tally:
    """Refused leaves by rule, and a call that words an example of each."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, Callable[[], Issue]] = field(default_factory=dict)

    def add(self, name: str, count: int) -> None:
        """Count refused leaves."""
        self.counts[name] = self.counts.get(name, 0) + count

    def worded(self) -> Tally:
        """Return the tally with its examples worded, which can go to another process."""
        return Tally(self.counts, {name: partial(Issue, i.where, i.message, i.fix)
                                   for name, i in ((n, e()) for n, e in self.examples.items())})


class Enumerator:
    """Streams the legal rows of a grid.

    Parameters
    ----------
    problem : Problem
    engine : Engine
    grid : Grid
    chunk : int
        Rows a piece.
    part : (int, int)
        Which part of how many: parts are disjoint and together the whole.
    """

    def __init__(self, problem: Problem, engine: Engine, grid: Grid, *, chunk: int = CHUNK,
                 part: tuple[int, int] = (0, 1)) -> None:
        self._model, self._system, self._engine = problem.model, problem.system, engine
        self.grid = grid
        self._chunk = chunk
        self._part = part
        self._rules = self._schedule()
        self.tally = Tally()

    def _schedule(self) -> list[list[RuleLike]]:
        """Rules by the number of axes after which all their fields are known."""
        level = {f: i + 1 for i, axis in enumerate(self.grid.axes) for f in axis.fields}
        # Any default may differ between frameworks.
        start = max(level.get("framework", 0), level.get("framework_version", 0))

        def known(name: str, seen: frozenset[str]) -> int:
            if name in level:
                return level[name]
            if name in self.grid.fixed or name in seen:
                return 0
            return max([start, *(known(f, seen | {name}) for f in DERIVED_FROM.get(name, ()))])

        rules: list[list[RuleLike]] = [[] for _ in range(len(self.grid.axes) + 1)]
        for rule in self._engine.rules:
            rules[max((known(f, frozenset()) for f in rule.fields), default=0)].append(rule)
        return rules

    @property
    def last_level(self) -> int:
        """Axes after which no rule can refuse a row any more."""
        return max((i for i, rules in enumerate(self._rules) if rules), default=0)

    def blocks(self, levels: int | None = None) -> Iterator[Block]:
        """Yield legal rows of the first `levels` axes (all of them by default)."""
        end = len(self.grid.axes) if levels is None else levels
        stream: Iterator[Block] = iter([Block({}, 1)])
        stream = self._refuse(stream, 0)
        shared = self._part[1] == 1
        for level in range(1, end + 1):
            stream = self._gather(self._refuse(self._join(stream, level), level))
            if not shared and self._can_share(level):
                stream, shared = self._share(stream), True
        return stream

    def chunks(self) -> Iterator[tuple[Block, Batch]]:
        """Yield all legal rows in full chunks, and the same as resolved batches."""
        held: list[Block] = []
        size = 0
        for block in self.blocks():
            held.append(block)
            size += block.size
            while size >= self._chunk:
                whole = concat(held)
                piece = whole.take(slice(0, self._chunk))
                yield piece, self.batch(piece)
                held = [whole.take(slice(self._chunk, None))]
                size -= self._chunk
        if size:
            piece = concat(held)
            yield piece, self.batch(piece)

    def batch(self, block: Block) -> Batch:
        """Resolve rows; columns that do not vary are stored once."""
        columns: dict[str, FloatArray | float] = dict(self.grid.fixed)
        for name, column in block.columns.items():
            same = column[0] == column[-1] and bool((column == column[0]).all())
            columns[name] = float(column[0]) if same else column
        batch = Batch.from_columns(columns, texts=self.grid.texts, size=block.size)
        return self._engine.resolve(self._model, self._system, batch)

    def count(self, limit: float = np.inf) -> int:
        """Count the legal rows without listing those that no rule can refuse.

        Stops early, with what it has, once the count exceeds `limit`.
        """
        total, level = 0, self.last_level
        for block in self.blocks(level):
            total += self.leaves(block, level)
            if total > limit:
                break
        return total

    def base_issues(self) -> list[Issue]:
        """Say which rules the fixed fields alone break."""
        batch = self.batch(Block({}, 1))
        context = self._engine.context(self._model, self._system, batch)
        return [rule.issue(context, 0) for rule in self._rules[0]
                if np.broadcast_to(rule.violated(context), (1,))[0]]

    def _can_share(self, level: int) -> bool:
        sizes = [len(_options(self.grid, axis, {})) if not axis.parents else 2
                 for axis in self.grid.axes[:level]]
        return float(np.prod(sizes)) >= PARTS_FROM or level == len(self.grid.axes)

    def _share(self, stream: Iterator[Block]) -> Iterator[Block]:
        """Keep every n-th row, and count what was refused before that only once."""
        which, of = self._part
        seen = 0
        blocks = list(stream)
        if which:
            self.tally.counts.clear()
        for block in blocks:
            mine = (np.arange(seen, seen + block.size) % of) == which
            seen += block.size
            if mine.any():
                yield block.take(mine)

    def _join(self, stream: Iterator[Block], level: int) -> Iterator[Block]:
        axis = self.grid.axes[level - 1]
        widest = 1
        for block in stream:
            start = 0
            while start < block.size:
                step = max(1, self._chunk // widest)
                piece = block.take(slice(start, start + step)) if step < block.size else block
                start += step
                source, new = _expand(self.grid, piece, axis)
                widest = max(widest, -(-len(source) // piece.size))
                if len(source):
                    columns = {k: c[source] for k, c in piece.columns.items()}
                    yield Block({**columns, **dict(zip(axis.fields, new, strict=True))},
                                len(source))

    def _refuse(self, stream: Iterator[Block], level: int) -> Iterator[Block]:
        """Drop the rows that a rule of this level refuses.

        A rule is asked once for each combination of what it depends on: far fewer than rows.
        """
        rules = self._rules[level]
        here = {f for axis in self.grid.axes[:level] for f in axis.fields}
        names = [n for n in self._depends(rules) if n in here]
        memo: dict[tuple[float, ...], int] = {}
        for block in stream:
            if not rules:
                yield block
                continue
            first, inverse = groups([block.columns[n] for n in names], block.size)
            keys = list(zip(*(block.columns[n][first].tolist() for n in names), strict=True))
            keys = keys or [()]
            new = [i for i, key in enumerate(keys) if key not in memo]
            if new:
                blamed = self._blame(rules, block.take(first[new]))
                memo.update(zip((keys[i] for i in new), blamed, strict=True))
            verdict = np.array([memo[key] for key in keys], np.int64)[inverse]
            if verdict.max() < 0:
                yield block
                continue
            for number in np.unique(verdict[verdict >= 0]):
                self.tally.add(rules[number].name,
                               self.leaves(block.take(verdict == number), level))
            if verdict.min() < 0:
                yield block.take(verdict < 0)

    def _depends(self, rules: list[RuleLike]) -> list[str]:
        """List what rules read, and what the defaults of that depend on."""
        found: dict[str, None] = {"framework": None, "framework_version": None}
        todo = [name for rule in rules for name in rule.fields]
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = None
                if name not in self.grid.fixed and name not in self.grid.fields:
                    todo.extend(DERIVED_FROM.get(name, ()))
        return sorted(found)

    def _blame(self, rules: list[RuleLike], block: Block) -> list[int]:
        """Return for each row the number of the first rule that it breaks, -1 for none."""
        context = self._engine.context(self._model, self._system, self.batch(block))
        first = np.full(block.size, -1, np.int64)
        for number, rule in enumerate(rules):
            bad = np.broadcast_to(rule.violated(context), (block.size,)) & (first < 0)
            if bad.any():
                first[bad] = number
                self.tally.examples.setdefault(
                    rule.name, partial(rule.issue, context, int(bad.argmax())))
        return first.tolist()

    def _gather(self, stream: Iterator[Block]) -> Iterator[Block]:
        """Put small blocks together: a block costs the same whether it is full or not."""
        held: list[Block] = []
        size = 0
        for block in stream:
            if size + block.size > self._chunk and held:
                yield concat(held)
                held, size = [], 0
            held.append(block)
            size += block.size
        if held:
            yield concat(held)

    def leaves(self, block: Block, level: int) -> int:
        """Count the leaves of the grid below rows of the first `level` axes, rules aside."""
        weights = np.ones(block.size)
        axes = self.grid.axes
        for k in range(level, len(axes)):
            needed = {p for axis in axes[k:] for p in axis.parents}
            block, weights = _merge(block, weights, needed)
            later = {p for axis in axes[k + 1:] for p in axis.parents}
            if not axes[k].parents and not later & set(axes[k].fields):
                weights = weights * len(_options(self.grid, axes[k], {}))
                continue
            source, new = _expand(self.grid, block, axes[k])
            columns = {name: c[source] for name, c in block.columns.items()}
            columns.update(zip(axes[k].fields, new, strict=True))
            block, weights = Block(columns, len(source)), weights[source]
        return round(float(weights.sum()))


def _options(grid: Grid, axis: Axis, given: Mapping[str, float]) -> tuple[tuple[float, ...], ...]:
    return axis.options({p: given.get(p, grid.base.get(p, UNSET))
                         for p in axis.parents})


def _expand(grid: Grid, block: Block, axis: Axis) -> tuple[IntArray, list[FloatArray]]:
    """Return for each new row the row it comes from, and the axis' new columns."""
    varying = [p for p in axis.parents if p in block.columns]
    first, inverse = groups([block.columns[p] for p in varying], block.size)
    tables = [_options(grid, axis, {p: float(block.columns[p][i]) for p in varying})
              for i in first]
    sizes = np.array([len(t) for t in tables], np.int64)
    flat = np.array([row for t in tables for row in t]).reshape(-1, len(axis.fields))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    counts = sizes[inverse]
    source = np.repeat(np.arange(block.size), counts)
    ends = np.cumsum(counts)
    within = np.arange(len(source)) - np.repeat(ends - counts, counts)
    rows = flat[np.repeat(starts[inverse], counts) + within]
    return source, [np.ascontiguousarray(rows[:, i]) for i in range(len(axis.fields))]


def domain(grid: Grid) -> dict[str, tuple[float, ...]]:
    """Return the values that each field takes somewhere in the grid, rules aside."""
    found: dict[str, tuple[float, ...]] = {}
    block = Block({}, 1)
    axes = grid.axes
    for k, axis in enumerate(axes):
        needed = {p for a in axes[k:] for p in a.parents}
        block, _ = _merge(block, np.ones(block.size), needed)
        source, new = _expand(grid, block, axis)
        columns = {name: c[source] for name, c in block.columns.items()}
        columns.update(zip(axis.fields, new, strict=True))
        block = Block(columns, len(source))
        for name, column in zip(axis.fields, new, strict=True):
            found[name] = tuple(dict.fromkeys(column.tolist()))
    return found


def _merge(block: Block, weights: FloatArray, needed: set[str]) -> tuple[Block, FloatArray]:
    """Drop columns and put equal rows together, adding up their weights."""
    columns = {k: c for k, c in block.columns.items() if k in needed}
    first, inverse = groups(list(columns.values()), block.size)
    merged = np.bincount(inverse, weights=weights, minlength=len(first))
    return Block({k: c[first] for k, c in columns.items()}, len(first)), merged.astype(np.float64)


def groups(columns: list[FloatArray], size: int) -> tuple[IntArray, IntArray]:
    """Find distinct rows.

    Returns
    -------
    first, inverse : ndarray
        First row of each combination, shape (u,), and each row's combination, shape (n,).
    """
    key = np.zeros(size, np.int64)
    radix = 1
    for column in columns:
        if column[0] == column[-1] and (column == column[0]).all():
            continue
        codes, width = _dense(column)
        key, radix = key * width + codes, radix * width
        if radix > _TABLE:
            values, key = np.unique(key, return_inverse=True)
            key, radix = key.reshape(-1), len(values)
    if radix == 1:
        return np.zeros(1, np.int64), key
    if radix > _TABLE:
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        return first.astype(np.int64), inverse.astype(np.int64).reshape(-1)
    # Of the writes to one place the last one stays: backwards, that is the first row.
    seen = np.full(radix, -1, np.int64)
    seen[key[::-1]] = np.arange(size - 1, -1, -1)
    present = seen >= 0
    return seen[present], (np.cumsum(present) - 1)[key]


def _dense(column: FloatArray) -> tuple[IntArray, int]:
    """Map values to small whole numbers; returns them and their radix."""
    low, high = float(column.min()), float(column.max())
    if high - low < 4096:
        codes = (column - low).astype(np.int64)
        if low == int(low) and (codes + low == column).all():
            return codes, int(high - low) + 1
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.astype(np.int64).reshape(-1), len(values)
