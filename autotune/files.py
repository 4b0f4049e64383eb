"""Files that are whole or not there: written beside their place, then moved."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from simcore.errors import InputError, Issue


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream whose content takes the place of a file when the block ends.

    A reader sees the file as it was or as it will be; where the block fails, nothing is left.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    handle, scratch = tempfile.mkstemp(prefix=".autotune-", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def save_text(path: Path, write: Callable[[TextIO], int]) -> int:
    """Write a text file that an option names, compressed where its name ends in .gz.

    Parameters
    ----------
    path : Path
    write : callable
        Writes to a stream and returns a number, which is passed on.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    try:
        with replacing(path) as raw:
            if path.suffix != ".gz":
                return _text(raw, write)
            # A fixed time keeps equal files equal.
            with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=5) as packed:
                return _text(cast(BinaryIO, packed), write)
    except OSError as error:
        raise InputError(Issue("--out", f"cannot write '{path}': {error.strerror}")) from error


def _text(binary: BinaryIO, write: Callable[[TextIO], int]) -> int:
    stream = io.TextIOWrapper(binary, encoding="utf-8")
    count = write(stream)
    stream.flush()
    stream.detach()
    return count
