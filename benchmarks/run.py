"""Measure: ``python -m benchmarks.run NAME... [--seeds N] [--problems N] [--trials N]``.

``all`` runs everything but the samplers. Each case is written to
``benchmarks/results/NAME_DATE.md`` with the machine it ran on.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.machine import described

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the cases that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*CASES, "all"])
    for option, default in (("seeds", 10), ("problems", 8), ("trials", 30)):
        parser.add_argument(f"--{option}", type=int, default=default, help="of samplers")
    given = vars(parser.parse_args())
    names = given.pop("names")
    if "all" in names:
        names = [n for n in CASES if n != "samplers"]
    RESULTS.mkdir(exist_ok=True)
    day = datetime.now(UTC).date().isoformat()
    for name in names:
        machine = described()
        lines = CASES[name](**(given if name == "samplers" else {}))
        table = "\n".join(f"| {a} | {b} | {c} |" for a, b, c in lines)
        text = (f"# {name}, {day}\n\n`python -m benchmarks.run {name}`\n\n{machine}\n\n"
                f"| figure | measured | bar |\n| --- | --- | --- |\n{table}\n")
        (RESULTS / f"{name}_{day}.md").write_text(text, "utf-8")
        print(text, flush=True)


if __name__ == "__main__":
    main()
