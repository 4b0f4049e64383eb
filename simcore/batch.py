"""Many strategies as a struct of arrays: one column of codes a field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from simcore.inputs.codec import decode, encode
from simcore.inputs.fields import FIELD, FIELD_NAMES, UNSET, Kind
from simcore.inputs.strategy import Strategy
from simcore.typing import BoolArray, FloatArray, IntArray

CHUNK = 32768
"""Rows evaluated at once: small enough that temporaries stay in the cache."""

_NARROW = 1 << 12
_TABLE = 1 << 16
"""Combinations up to which a table finds the distinct ones faster than sorting."""

Column = IntArray | FloatArray


def is_constant(column: Column) -> bool:
    """Tell whether a column is one value broadcast over all rows (stride 0), at no cost."""
    return column.strides[0] == 0 or len(column) == 1


def constant(value: npt.NDArray[Any], size: int) -> Column:
    """Return a number, shape () or (1,), as a column that is stored once (stride 0), read-only.

    What `numpy.broadcast_to` returns, ten times faster.
    """
    column = np.ndarray((size,), value.dtype, value, 0, (0,))
    column.setflags(write=False)
    return column


def as_column(values: object, dtype: npt.DTypeLike) -> Column:
    """Return values as a column of one of the two number formats."""
    return cast(Column, np.asarray(values, dtype))


def _dtype(name: str) -> type:
    return np.float64 if FIELD[name].kind is Kind.FLOAT else np.int64


@dataclass(frozen=True)
class Batch:
    """Strategies, one a row; a single strategy is a batch of one.

    Parameters
    ----------
    columns : mapping of str to ndarray, shape (n,)
        One a field; int64 codes (see `simcore.inputs.fields`), float64 for FLOAT fields.
        Columns that are the same in every row are stored once (stride 0).
    texts : tuple of str
        What the codes of TEXT fields point into.
    size : int
        Number of rows, n.
    """

    columns: Mapping[str, Column]
    texts: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, name: str) -> IntArray:
        """Return the column of an integer-coded field, shape (n,)."""
        return self.columns[name]  # type: ignore[return-value]

    def real(self, name: str) -> FloatArray:
        """Return a column as float64, shape (n,)."""
        column = self.columns[name]
        if self.size > 1 and is_constant(column):
            return cast(FloatArray, constant(column[:1].astype(np.float64), self.size))
        return column.astype(np.float64)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Column | float], *,
                     texts: Sequence[str] = (), size: int) -> Batch:
        """Build a batch from columns; numbers are broadcast, missing fields are UNSET."""
        full: dict[str, Column] = {}
        for name in FIELD_NAMES:
            value = as_column(columns.get(name, UNSET), _dtype(name))
            if value.ndim == 0:
                # A batch of one needs no stride of 0, which costs ten times a reshape.
                value = value.reshape(1) if size == 1 else constant(value, size)
            full[name] = value
        return cls(full, tuple(texts), size)

    @classmethod
    def from_strategies(cls, rows: Iterable[Strategy]) -> Batch:
        """Build a batch from strategies, in their order."""
        rows = list(rows)
        texts: list[str] = []
        columns: dict[str, Column | float] = {}
        for name in FIELD_NAMES:
            field = FIELD[name]
            codes = [encode(field, value, texts) for value in map(attrgetter(name), rows)]
            same = all(c == codes[0] for c in codes) if codes else True
            columns[name] = (codes[0] if codes else UNSET) if same else np.asarray(codes)
        return cls.from_columns(columns, texts=texts, size=len(rows))

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        """Return a batch in which these columns are replaced."""
        return Batch({**self.columns, **columns}, self.texts, self.size)

    def take(self, index: IntArray | BoolArray | slice) -> Batch:
        """Return the rows that an index, a mask or a slice names."""
        size = len(np.empty(self.size, dtype=np.bool_)[index])
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            if column.strides[0] == 0 and len(column):
                columns[name] = constant(column[:1], size)
            else:
                columns[name] = column[index]
        return Batch(columns, self.texts, size)

    def row(self, i: int) -> Strategy:
        """Return row i as a strategy."""
        values = {name: decode(FIELD[name], float(column[i]), self.texts)
                  for name, column in self.columns.items()}
        return Strategy(**values)  # type: ignore[arg-type]

    def chunks(self, size: int = CHUNK) -> Iterator[Batch]:
        """Yield the batch in pieces of at most `size` rows, in order."""
        for start in range(0, self.size, size):
            yield self.take(slice(start, start + size))

    def group(self, names: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Find the distinct combinations of some fields.

        Returns
        -------
        first, inverse : ndarray
            Row of the first occurrence of each combination, shape (u,), and for each row the
            combination it has, shape (n,).
        """
        return distinct([self.columns[n] for n in names], self.size)


def distinct(columns: Sequence[Column], size: int) -> tuple[IntArray, IntArray]:
    """Find the distinct rows of some columns, each of shape (size,) or (1,).

    Returns
    -------
    first, inverse : ndarray
        Row of the first occurrence of each combination, shape (u,), and for each row the
        combination it has, shape (size,).
    """
    varying = [] if size <= 1 else [c for c in columns if not is_constant(c)]
    if not varying:
        return np.zeros(min(1, size), np.int64), np.zeros(size, np.int64)
    key, width = _dense(varying[0])
    for column in varying[1:]:
        codes, radix = _dense(column)
        if width * radix > _NARROW and width > 1:
            # Many combinations do not occur: dense codes keep the radix small.
            present, key = _distinct(key, width)
            width = len(present)
        key, width = key * radix + codes, width * radix
    return _distinct(key, width)


def _distinct(key: IntArray, width: int) -> tuple[IntArray, IntArray]:
    if width <= max(_TABLE, 4 * len(key)):
        return _distinct_by_table(key, width)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64).reshape(-1)


def _distinct_by_table(key: IntArray, width: int) -> tuple[IntArray, IntArray]:
    """Find distinct keys below `width` without sorting; as `distinct` returns them."""
    place = np.full(width, -1, np.int64)
    # Of several writes to one place the last one stays: backwards, that is the first row.
    place[key[::-1]] = np.arange(len(key) - 1, -1, -1)
    present = place >= 0
    return place[present], (np.cumsum(present) - 1)[key]


def _dense(column: Column) -> tuple[IntArray, int]:
    """Map a column's values to small whole numbers; returns them and their radix."""
    if column.dtype == np.int64:
        low, high = int(column.min()), int(column.max())
        if high - low < 4096:
            return column.astype(np.int64) - low, high - low + 1
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.astype(np.int64).reshape(-1), len(values)
