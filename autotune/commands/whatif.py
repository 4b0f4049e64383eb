"""``autotune whatif``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from autotune.commands.failures import DONE
from autotune.commands.inputs import Problems, output_format, text
from simcore.errors import InputError, Issue, NoFeasibleStrategyError


def run(values: Mapping[str, object]) -> int:
    """Vary figures of a system and show what each is worth."""
    style = output_format(values)
    problems = Problems()
    from autotune.commands.search import read_problem

    given = values.get("vary")
    asked = [str(v) for v in given] if isinstance(given, (list, tuple)) else []
    if not asked:
        problems.add("--vary", "is needed", "write --vary network.nic_gb_per_s=x0.5..x4:10")
    out = text(values, "page")
    if out and (Path(out).is_dir() or not Path(out).absolute().parent.is_dir()):
        problems.add("--page", f"'{out[:200]}' is a folder, or its folder does not exist",
                     "name a file in a folder that exists")
    read = problems.collect(lambda: read_problem({**values, "out": None}))
    from autotune.hardware.figures import parse_varied

    varied = []
    if read is not None:
        varied = [problems.collect(lambda t=t: parse_varied(t, read[0].system))  # type: ignore[misc]
                  for t in asked]
        names = [v.name for v in varied if v is not None]
        for name in {n for n in names if names.count(n) > 1}:
            problems.add("--vary", f"names {name} twice", "give all its values at once")
    problems.settle()
    if read is None:
        raise InputError(Issue("--vary", "is needed"))
    from autotune.hardware.whatif import whatif
    from autotune.report.progress import progress_bar

    with progress_bar("searching") or nullcontext() as progress:
        found = whatif(read[0], [v for v in varied if v is not None],
                       together=bool(values.get("together")), progress=progress)
    if not any(p["fits"] for p in found["points"]):
        raise NoFeasibleStrategyError("nothing fits at any of these values; 'autotune search' "
                                      "shows the nearest miss")
    if out:
        from autotune.files import save_text
        from autotune.pages.whatif import whatif_page
        page = whatif_page(found)
        save_text(Path(out), lambda stream: stream.write(page))
    from autotune.report.emit import emit

    def table() -> None:
        from autotune.report.whatif import print_whatif
        print_whatif(found)

    emit(found, style=style, table=table, rows=lambda: [
        {**p["figures"], **{k: v for k, v in p.items()
                            if k not in ("figures", "strategy", "differs")}}
        for p in found["points"]])
    return DONE
