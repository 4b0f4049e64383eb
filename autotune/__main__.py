"""Entry point of the command line: ``autotune`` and ``python -m autotune``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


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
    from autotune.commands.failures import guarded

    return guarded(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
