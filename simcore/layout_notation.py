"""The two notations of a pipeline layout.

Ours names the decoder layers of every chunk (``4|4|4|1m``, m: the chunk with the MTP layers);
Megatron's names layers by letters, E embedding, t decoder, m MTP, L loss
(``Et*4|(t*4|)*14tmL``).

References
----------
Megatron-Core 0.19, ``pipeline_parallel_layer_layout.py`` (`parse_str_to_list`,
`validate_layer_layout`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_MAX_PARTS = 100_000
_NUMBERS = re.compile(r"\d{1,6}m?(\|\d{1,6}m?)*\Z")


def layout_text(counts: Iterable[int], mtp_chunk: int | None) -> str:
    """Write a layout canonically; `mtp_chunk` is None where there are no MTP layers."""
    return "|".join(f"{n}m" if i == mtp_chunk else str(n) for i, n in enumerate(counts))


def is_numeric(text: str) -> bool:
    """Tell whether a layout is in our notation."""
    return _NUMBERS.match(text) is not None


def num_chunks(text: str) -> int | None:
    """Chunks that a layout names; None for ``none``, ``auto`` and what cannot be read."""
    stages = None if text in ("none", "auto") else stages_of(text)
    return None if stages is None or isinstance(stages, str) else len(stages[0])


def mtp_problem(text: str, mtp: int) -> str:
    """Say what is wrong with the number of MTP layers in Megatron's notation, if anything."""
    given = sum(stage.count("m") for stage in _unrolled(text).split("|"))
    return "" if given == mtp else f"must name every MTP layer ({mtp}), got {given} 'm'"


@lru_cache(maxsize=1024)
def stages_of(text: str) -> tuple[tuple[int, ...], int | None] | str:
    """Decoder layers of every chunk and the chunk marked m; or what is wrong."""
    if is_numeric(text):
        parts = text.split("|")
        marked = [i for i, part in enumerate(parts) if part.endswith("m")]
        if len(marked) > 1:
            return "must mark one chunk with m"
        return tuple(int(part.rstrip("m")) for part in parts), marked[0] if marked else None
    flat = _unrolled(text)
    if not flat or set(flat) - set("EtmL|"):
        return ("must be layers of every chunk ('4|4|4|1m'), Megatron's letters E t m L "
                f"('Et*4|(t*4|)*14tmL'), auto or none, got '{text[:60]}'")
    stages = flat.split("|")
    order = "".join(stages)
    if not re.fullmatch(r"Et*m*L", order):
        return "must begin with E, end with L, and name m behind all t"
    marked = [i for i, stage in enumerate(stages) if "m" in stage]
    if len(marked) > 1:
        return "must place all MTP layers in one chunk"
    return tuple(stage.count("t") for stage in stages), marked[0] if marked else None


def _unrolled(text: str) -> str:
    """Write out Megatron's multiplications; empty where the text is too long or nested."""
    flat = text.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d{1,5})", r"([A-Za-z|])\*(\d{1,5})"):
        length = sum(len(m[1]) * int(m[2]) for m in re.finditer(pattern, flat))
        if length > _MAX_PARTS:
            return ""
        flat = re.sub(pattern, lambda m: m[1] * int(m[2]), flat)
    return flat
