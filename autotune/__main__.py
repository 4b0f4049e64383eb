"""Entry point of the command line: ``autotune`` and ``python -m autotune``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence


def _start_fast() -> None:
    """Spare a process that lives for half a second what only long ones profit from.

    Starting a thread pool for linear algebra, which nothing here uses, costs some 60 ms of
    importing numpy; collecting garbage among modules and schemas that stay costs as much,
    and looking for plugins of pydantic a third of it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(100_000, 50, 50)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process where left out.

    Returns
    -------
    int
        0 done, 2 bad input, 3 nothing fits, 1 anything else.
    """
    _start_fast()
    from autotune.commands.failures import guarded

    return guarded(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
