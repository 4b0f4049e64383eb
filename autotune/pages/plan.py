"""A plan's answer as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from autotune.figures import plan as draw
from autotune.pages.html import Cell, Column, Section, figure, page, table
from autotune.planning.write import QUESTION_HEAD, number, question_cells, yes_no

Row = Mapping[str, Any]
MOST_SERIES = 40


def plan_page(answer: Row) -> str:
    """Return the page.

    Raises
    ------
    MissingExtraError
        The package that draws the figures is not installed.
    """
    from autotune import version

    figures = {}
    scaling = [{"series": f"{q['model']}, {q['cluster']}, {q['workload']}", **point}
               for q in answer["questions"][:MOST_SERIES] if q["fits"] for point in q["scaling"]]
    money = [{"series": f"{r['model']}, {r['cluster']}, {r['workload']}", "gpus": r["gpus"],
              "days": r["days"], "cost_usd": r["cost_usd"], "layout": r["layout"]}
             for r in answer["rows"] if r["fits"] and r["cost_usd"] is not None]
    body = ""
    if scaling:
        figures["scaling"] = draw.scaling(scaling)
        body += figure("scaling", figures["scaling"])
    if money:
        figures["money"] = draw.time_and_money(money)
        body += figure("money", figures["money"])
    sections = [Section("answers", "Answers", _answers(answer)),
                Section("pictures", "Scaling and cost", body or "<p>Nothing fits.</p>"),
                Section("rows", "Every GPU count", _rows(answer))]
    if answer["splits"]:
        sections.insert(1, Section("splits", "Shared clusters", _splits(answer)))
    if answer.get("changes"):
        sections.insert(0, Section("changes", "What changed", _changes(answer["changes"])))
    return page(str(answer["plan"]), f"{len(answer['questions'])} questions, "
                f"{len(answer['rows'])} searches.", sections, figures,
                footer=f"autotune {version()}. Predicted, not measured.")


def _answers(answer: Row) -> str:
    is_text = {"model", "cluster", "workload", "layout", "deadline", "budget", "least to knee"}
    return table([Column(h, h in is_text) for h in QUESTION_HEAD],
                 [[_cell(text) for text in row] for row in question_cells(answer)],
                 name="answers-table", filtered=True,
                 caption="The cheapest GPU count that meets deadline and budget, else the fastest")


def _cell(text: str) -> Cell:
    plain = text.replace(",", "")
    try:
        return Cell(text, float(plain))
    except ValueError:
        return Cell(text, None, "does_not_fit" if text == "NO" else "")


def _rows(answer: Row) -> str:
    columns = [Column("model", True), Column("cluster", True), Column("workload", True),
               Column("GPUs"), Column("layout", True), Column("tokens/s/GPU"), Column("MFU"),
               Column("goodput"), Column("days"), Column("USD"), Column("MWh"),
               Column("deadline", True), Column("budget", True)]
    rows = []
    for r in answer["rows"]:
        head = [Cell(r["model"]), Cell(r["cluster"]), Cell(r["workload"]),
                Cell(f"{r['gpus']:,}", float(r["gpus"]))]
        if not r["fits"]:
            rows.append([*head, Cell(r["reason"], None, "does_not_fit"),
                         *[Cell("-")] * (len(columns) - 5)])
            continue
        rows.append([*head, Cell(r["layout"]),
                     *(Cell(number(r[k], d), r[k]) for k, d in (("tokens_per_s_per_gpu", 0),)),
                     Cell(f"{r['mfu']:.1%}", r["mfu"]),
                     Cell(f"{r['goodput_frac']:.1%}", r["goodput_frac"]),
                     *(Cell(number(r[k], d), r[k]) for k, d in (
                         ("days", 2), ("cost_usd", 0), ("energy_mwh", 1))),
                     Cell(yes_no(r["meets_deadline"])), Cell(yes_no(r["meets_budget"]))])
    return table(columns, rows, name="rows-table", filtered=True,
                 caption="One search each; click a heading to sort")


def _splits(answer: Row) -> str:
    parts = []
    for i, split in enumerate(answer["splits"]):
        if not split["jobs"]:
            parts.append(f"<p>{escape(split['cluster'])}: {escape(split['reason'])}</p>")
            continue
        rows = [[Cell(j["model"]), Cell(j["workload"]), Cell(f"{j['gpus']:,}", j["gpus"]),
                 Cell(number(j["days"], 2), j["days"]), Cell(number(j["cost_usd"], 0),
                                                             j["cost_usd"]),
                 Cell(j["layout"])] for j in split["jobs"]]
        parts.append(table(
            [Column("model", True), Column("workload", True), Column("GPUs"), Column("days"),
             Column("USD"), Column("layout", True)], rows, name=f"split-{i}",
            caption=f"{split['cluster']}: {split['gpus_used']:,} of "
                    f"{split['available_gpus']:,} GPUs, by {split['objective']}"))
    return "".join(parts)


def _changes(found: Row) -> str:
    lines = [f"<li class='does_not_fit'>Newly broken: {escape(b)}</li>" for b in found["broken"]]
    lines += [f"<li class='fits'>{escape(m)}</li>" for m in found["mended"]]
    if found["inputs"]:
        lines.append(f"<li>Inputs that changed: {escape(', '.join(found['inputs']))}</li>")
    moved = [[Cell(m["model"]), Cell(m["cluster"]), Cell(m["workload"]),
              Cell(f"{m['gpus']:,}", m["gpus"]), Cell(m["what"]), Cell(", ".join(m["why"]))]
             for m in found["moved"]]
    body = f"<ul>{''.join(lines)}</ul>" if lines else "<p>Nothing broke.</p>"
    if moved:
        body += table([Column("model", True), Column("cluster", True), Column("workload", True),
                       Column("GPUs"), Column("what", True), Column("why", True)], moved,
                      name="moved-table", caption="Answers that moved")
    return body
