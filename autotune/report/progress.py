"""A progress bar on stderr for what takes more than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType

SHOW_AFTER_S = 1.0
EVERY_S = 0.1
WIDTH = 30


class Bar:
    """A bar that appears after a second, on a terminal; without one, nothing is written.

    Parameters
    ----------
    label : str
        What is being done.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = time.monotonic()
        self._next = self._start + SHOW_AFTER_S
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        """Say how much is done."""
        now = time.monotonic()
        if now < self._next or total <= 0:
            return
        self._next = now + EVERY_S
        share = min(1.0, done / total)
        full = round(WIDTH * share)
        left = (now - self._start) * (1 / share - 1) if share else 0.0
        sys.stderr.write(f"\r{self._label} [{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%} "
                         f"{done:,} of {total:,}, {left:.0f} s left   ")
        sys.stderr.flush()
        self._shown = True

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._shown:
            # The bar is wiped, so that nothing of it stays between the lines of a result.
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress_bar(label: str) -> Bar | None:
    """Return a bar where stderr is a terminal."""
    return Bar(label) if sys.stderr is not None and sys.stderr.isatty() else None
