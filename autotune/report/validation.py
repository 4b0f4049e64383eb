"""The tables of ``validate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.accuracy import NEAR
from autotune.report.emit import emit
from autotune.report.published import published_error

Data = Mapping[str, Any]


def _pct(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"


def summary_row(name: str, summary: Data, *others: str) -> list[str]:
    """Return one line of the error table, in percent."""
    time, memory, oom = summary["step_time"], summary["peak_memory"], summary["oom"]
    rank = summary["ranking"]
    verdicts = f"{oom['accuracy']:.1%}" if oom["accuracy"] is not None and oom["failed"] else ""
    return [name, str(summary["rows"]), str(summary["skipped"]), str(time["n"]),
            _pct(time["mean_abs_pct"]), _pct(time["median_abs_pct"]), _pct(time["p90_abs_pct"]),
            _pct(time["max_abs_pct"]), _signed(time["bias_pct"]), str(memory["n"] or ""),
            _pct(memory["mean_abs_pct"]), _pct(memory["max_abs_pct"]), verdicts,
            "" if rank["spearman_median"] is None else f"{rank['spearman_median']:.2f}",
            _pct(rank["regret_mean_pct"]), *others]


COLUMNS = (("", 0), ("rows", 3), ("skipped", 3), ("time n", 1), ("mean", 0), ("median", 0),
           ("p90", 0), ("max", 2), ("bias", 1), ("mem n", 2), ("mean", 0), ("max", 2),
           ("fit right", 1), ("spearman", 3), ("regret", 3), ("others", 4))


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Cut what all paths have in common from the front."""
    parts = [name.replace("\\", "/").split("/") for name in names]
    while len(parts) > 1 and all(len(p) > 1 for p in parts) and len({p[0] for p in parts}) == 1:
        parts = [p[1:] for p in parts]
    if len(names) == 1:
        parts = [parts[0][-2:]]
    return {name: "/".join(p) for name, p in zip(names, parts, strict=True)}


REFIT = ("", "n", "shipped: mean", "left out: mean", "n but doubtful", "left out: mean", "p90")


def refit_rows(found: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Rows of `REFIT`."""
    return [[name, str(e["with_doubtful_n"]), _pct(e["shipped_mean_pct"]),
             _pct(e["with_doubtful_mean_pct"]), str(e["n"]), _pct(e["mean_pct"]),
             _pct(e["p90_pct"])]
            for name, e in found.items()]


def print_validation(data: Data) -> None:
    """Print errors by table and by system, and why rows were skipped."""
    from autotune.report.console import Column, cell, console, show

    out = console()
    names = {file: name.removesuffix(".csv")
             for file, name in short_names(list(data["by_file"])).items()}
    # Names wrap rather than being cut: they are there to be found again.
    columns = [Column(title, right=title not in ("", "others"), keep=keep,
                      wrap=0 if title else max(20, out.width // 4))
               for title, keep in COLUMNS]
    lines = [summary_row(names[file], summary, published_error(file))
             for file, summary in data["by_file"].items()]
    lines.append(summary_row("all", data["summary"], ""))
    if "without_doubtful" in data:
        lines.append(summary_row("all but doubtful", data["without_doubtful"], ""))
    lines += [summary_row(f"fold {name}", summary, "")
              for name, summary in data.get("by_fold", {}).items()]
    show(out, columns, lines,
         title="Error of step time, then of peak memory, in % (others: published errors of "
               "other tools on these runs, means unless said)")
    out.print()
    by_system = [summary_row(name, summary) for name, summary in data["by_system"].items()]
    show(out, columns[:-1], by_system, title="The same by system")
    if "refit_on_folds" in data:
        out.print()
        show(out, [Column(title, right=at > 0) for at, title in enumerate(REFIT)],
             refit_rows(data["refit_on_folds"]),
             title="Error of step time where constants are fitted to four folds, on the fifth, in "
                   "%; shipped: fitted to all, when that was last done")
    _print_words(out, data, cell)
    skipped = Counter(row["skipped"] for row in data["rows"] if row["skipped"])
    if skipped:
        out.print()
        out.print(cell(f"Skipped rows ({sum(skipped.values())})"))
        for reason, count in skipped.most_common(20):
            out.print(cell(f"  {count:4d}  {reason}"))


def _print_words(out: Any, data: Data, cell: Any) -> None:
    oom, rank = data["summary"]["oom"], data["summary"]["ranking"]
    out.print()
    if oom["n"] and oom["accuracy"] is not None:
        out.print(cell(f"fit        {oom['accuracy']:.1%} of {oom['n']} verdicts right "
                       f"({oom['ran']} ran, {oom['failed']} failed for memory): "
                       f"{oom['false_fit']} wrongly fit, {oom['false_oom']} wrongly refused, "
                       f"{oom['marginal']} marginal"))
    sure = data["summary"]["interval"]
    if sure["n"]:
        out.print(cell(f"intervals  {sure['held']:.0%} of {sure['n']} steps lie between p10 and "
                       f"p90, {sure['median_width_pct']:.1f} % wide (median)"))
    apart = data["summary"]["told_apart"]
    if apart["told"]:
        near = ("" if apart["near_right"] is None else
                f"; of those under {NEAR:.0%} apart {apart['near_told']:.0%} and "
                f"{apart['near_right']:.0%}")
        out.print(cell(f"order      {apart['told']:.0%} of {apart['pairs']} pairs of one question "
                       f"are told apart, {apart['right']:.0%} of these in the right order{near}"))
    if rank["groups"]:
        out.print(cell(f"ranking    {rank['groups']} groups, Spearman "
                       f"{rank['spearman_median'] or 0:.3f} (median), regret of the first pick "
                       f"mean {rank['regret_mean_pct'] or 0:.1f} %, p90 "
                       f"{rank['regret_p90_pct'] or 0:.1f} %, max "
                       f"{rank['regret_max_pct'] or 0:.1f} %; {rank['failed_picks']} picks "
                       "had failed"))


def csv_rows(data: Data) -> list[dict[str, Any]]:
    """Return one row a run."""
    return [{"file": r["file"], "id": r["id"], "model": r["model"], "system": r["system"],
             "measured_step_time_s": r["measured"]["step_time_s"],
             "predicted_step_time_s": r["predicted"]["step_time_s"],
             "step_time_error_pct": r["error_pct"]["step_time"],
             "measured_peak_memory_gib": r["measured"]["peak_memory_gib"],
             "predicted_peak_memory_gib": r["predicted"]["peak_memory_gib"],
             "peak_memory_error_pct": r["error_pct"]["peak_memory"],
             "oom": r["measured"]["oom"], "verdict": r["predicted"]["verdict"],
             "skipped": r["skipped"]} for r in data["rows"]]


def emit_validation(data: Data, *, style: str) -> None:
    """Write what ``validate`` found."""
    emit(data, style=style, table=lambda: print_validation(data), rows=lambda: csv_rows(data))
