"""Work on several cores, where it is worth starting them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from simcore.errors import InputError, Issue

T = TypeVar("T")
R = TypeVar("R")

WORTH_S = 20.0
"""Estimated seconds of one core above which processes are started: starting them takes about
one, and arrays that fit the caches gain nothing from threads."""


def run_all(function: Callable[[T], R], items: Sequence[T], *, jobs: int,
            done: Callable[[], None] | None = None) -> list[R]:
    """Apply a function to every item; the results keep the items' order.

    Parameters
    ----------
    function : callable
        Importable by name where jobs > 1.
    items : sequence
    jobs : int
        Processes; 1: this one only.
    done : callable, optional
        Called after each item.
    """
    results: list[R] = []
    if jobs == 1 or len(items) == 1:
        stream = map(function, items)
    else:
        import warnings

        from joblib import Parallel, delayed
        # Where it is interrupted, joblib tells of processes that had gone already.
        warnings.filterwarnings("ignore", message="Failed to kill subprocesses")
        stream = Parallel(n_jobs=jobs, return_as="generator")(
            delayed(function)(item) for item in items)
    for result in stream:
        results.append(result)
        if done is not None:
            done()
    return results


def default_jobs() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Not every system can say.
        return os.cpu_count() or 1


@contextmanager
def dask_backend(scheduler: str) -> Iterator[None]:
    """Run what `run_all` is given on the workers of a Dask cluster.

    Parameters
    ----------
    scheduler : str
        Its address, such as tcp://10.0.0.1:8786.

    Raises
    ------
    InputError
        Dask is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(Issue("--backend", "dask is not installed",
                               "pip install 'autotune[dask]'")) from error
    from joblib import parallel_config
    try:
        client = Client(scheduler, timeout="20s", set_as_default=True)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(Issue("--scheduler", f"no scheduler answers at '{scheduler[:200]}'",
                               "give its address, such as tcp://10.0.0.1:8786")) from error
    try:
        with parallel_config(backend="dask"):
            yield
    finally:
        client.close()  # type: ignore[no-untyped-call]
