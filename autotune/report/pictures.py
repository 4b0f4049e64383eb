"""Pictures in the terminal: bars, a timeline of the pipeline, a heat map.

They are made of block characters, so that they also stand in a log; colour is added by rich
where the terminal has some and NO_COLOR does not forbid it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from autotune.report.console import Column, cell, console, show

if TYPE_CHECKING:
    from simcore.events import Step
    from simcore.prediction import Prediction

Data = Mapping[str, Any]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 24
PART_MARKS = {"weights": ("█", "blue"), "gradients": ("▓", "cyan"), "optimizer": ("▒", "green"),
              "activations": ("░", "yellow"), "temporaries": ("▚", "magenta")}
_SHADES = " ░▒▓█"
MOST_LINES = 64


def bar(value: float, most: float, width: int = BAR_WIDTH, style: str = "") -> Text:
    """Return a bar as long as value is of most, in eighths of a character."""
    share = 0.0 if most <= 0 else min(max(value / most, 0.0), 1.0)
    whole, rest = divmod(round(share * width * 8), 8)
    return Text("█" * whole + (_EIGHTHS[rest] if rest else ""), style=style)


def signed_bar(value: float, most: float, width: int = 12) -> Text:
    """Return a bar to the left (less) or to the right (more) of a middle line."""
    share = 0.0 if most <= 0 else min(abs(value) / most, 1.0)
    count = round(share * width)
    left = ("█" * count).rjust(width) if value < 0 else " " * width
    right = "█" * count if value > 0 else ""
    return Text.assemble((left, "green"), "│", (right, "red"))


def memory_bar(stage: Data, limit_gib: float, width: int) -> Text:
    """Return a stage's memory by part, over the width that the device's memory has."""
    picture = Text()
    done = 0
    held = 0.0
    for part, (mark, style) in PART_MARKS.items():
        held += float(stage[f"{part}_gib"])
        end = min(round(held / limit_gib * width), 2 * width)
        picture.append(mark * max(end - done, 0), style=style)
        done = max(done, end)
    if done < width:
        picture.append("·" * (width - done), style="dim")
    return picture


def memory_legend() -> Text:
    """Say which mark is which part."""
    picture = Text()
    for part, (mark, style) in PART_MARKS.items():
        picture.append(mark * 2, style=style)
        picture.append(f" {part}  ")
    picture.append("·· free", style="dim")
    return picture


def timeline(step: Step, width: int) -> list[Text]:
    """Return one line a pipeline rank: what it does in each slice of the step.

    Parameters
    ----------
    step : Step
    width : int
        Characters of a line; each stands for an equal slice of the step and shows what fills
        most of it: ``F``, ``B`` or nothing.
    """
    lines = []
    for rank in range(step.pp):
        forward, backward = [0.0] * width, [0.0] * width
        for kind, start, end in zip(step.run.orders[rank][0].tolist(),
                                    step.run.start_s[rank].tolist(),
                                    step.run.end_s[rank].tolist(), strict=True):
            _spread(backward if kind else forward, start / step.end_s * width,
                    end / step.end_s * width)
        line = Text()
        for f, b in zip(forward, backward, strict=True):
            if max(f, b, 1.0 - f - b) == 1.0 - f - b:
                line.append("·", style="dim")
            elif f >= b:
                line.append("F", style="blue")
            else:
                line.append("B", style="yellow")
        lines.append(line)
    return lines


def _spread(slices: list[float], start: float, end: float) -> None:
    """Add a span to the slices that it covers."""
    for i in range(int(start), min(int(end) + 1, len(slices))):
        slices[i] += max(min(end, i + 1) - max(start, i), 0.0)


def heat_map(cells: Sequence[Data], *, rows: str, columns: str,
             value: str) -> tuple[list[str], list[list[Any]]]:
    """Return the best of each (row, column) as a table of shares of the overall best.

    Parameters
    ----------
    cells : sequence of mapping
        With the keys `rows`, `columns` and `value`; more of `value` is better.
    """
    best: dict[tuple[int, int], float] = {}
    for entry in cells:
        key = (int(entry[rows]), int(entry[columns]))
        best[key] = max(best.get(key, 0.0), float(entry[value]))
    top = max(best.values(), default=1.0)
    across = sorted({c for _, c in best})
    table: list[list[Any]] = []
    for r in sorted({r for r, _ in best}, reverse=True):
        line: list[Any] = [f"{rows}{r}"]
        for c in across:
            share = best.get((r, c), 0.0) / top
            line.append(f"{share:.0%} {_SHADES[_shade(share)] * 2}" if share else "")
        table.append(line)
    return [f"{columns}{c}" for c in across], table


def _shade(share: float) -> int:
    """Darker the nearer to the best: within 2, 6 and 15 %."""
    return 4 if share >= 0.98 else 3 if share >= 0.94 else 2 if share >= 0.85 else 1


def print_prediction_pictures(prediction: Prediction, data: Data) -> None:
    """Draw a strategy's memory by stage and its pipeline.

    Parameters
    ----------
    prediction : Prediction
    data : mapping
        Its JSON.
    """
    from simcore.events import simulate_step

    out = console()
    stages, limit = data["memory"]["stages"], float(data["system"]["memory_gib"])
    width = max(min(out.width - 24, 100), 20)
    out.print()
    out.print(cell(f"Memory of each stage (a full line: the device's {limit:.1f} GiB)"))
    for stage in stages[:MOST_LINES]:
        out.print(Text.assemble(f"{stage['stage']:>3} ", memory_bar(stage, limit, width),
                                f" {stage['peak_memory_gib']:.1f} GiB"), no_wrap=True,
                  overflow="crop")
    out.print(memory_legend())
    step = simulate_step(prediction)
    out.print()
    out.print(cell(f"Pipeline over the step of {step.end_s:.4g} s (F forward, B backward, "
                   "· idle or the optimizer)"))
    for rank, line in enumerate(timeline(step, width)[:MOST_LINES]):
        out.print(Text.assemble(f"{rank:>3} ", line), no_wrap=True, overflow="crop")
    if len(stages) > MOST_LINES:
        out.print(cell(f"... and {len(stages) - MOST_LINES} more stages"))


def print_search_pictures(cells: Sequence[Data]) -> None:
    """Draw the best throughput of each tp and pp."""
    heads, rows = heat_map(cells, rows="tp", columns="pp", value="tokens_per_s_per_gpu")
    out = console()
    out.print()
    show(out, [Column("", right=False), *(Column(head, right=False) for head in heads)], rows,
         title="Best throughput by tp and pp, of the best")
