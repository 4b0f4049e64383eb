"""Lists of what is built in, and one entry with all its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.commands.catalogue import flatten
from autotune.report.emit import emit

Data = Mapping[str, Any]

TITLES = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
          "num_query_groups": "groups", "memory_gib": "GiB",
          "memory_bandwidth_gb_per_s": "HBM GB/s", "peak_bf16_tflops": "bf16 TF",
          "peak_fp8_tflops": "fp8 TF", "gpus_per_node": "node", "domain_size": "domain",
          "scale_up_gb_per_s": "link GB/s", "nic_gb_per_s": "NIC GB/s",
          "active_parameters": "active"}
DROPPED_FIRST = {"aliases": 3, "provenance": 2, "vendor": 4, "seq_len": 2, "active_parameters": 1,
                 "num_query_groups": 2, "num_attention_heads": 2}


def _shown(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if key in ("parameters", "active_parameters"):
        return f"{value / 1e9:.2f} B"
    return f"{value:g}" if isinstance(value, float) else str(value)


def emit_list(kind: str, rows: Sequence[Data], *, style: str) -> None:
    """Write a list of what is built in."""
    def print_table() -> None:
        from autotune.report.console import Column, cell, console, show
        out = console()
        keys = list(rows[0])
        columns = [Column(TITLES.get(key, key), right=key not in (
            "name", "kind", "vendor", "aliases", "provenance"), keep=DROPPED_FIRST.get(key, 0))
            for key in keys]
        show(out, columns, [[_shown(key, row[key]) for key in keys] for row in rows])
        out.print()
        out.print(cell(f"'autotune {kind} NAME' shows all figures and their sources."))

    def csv_rows() -> list[dict[str, Any]]:
        return [{key: " ".join(value) if isinstance(value, list) else value
                 for key, value in row.items()} for row in rows]

    emit({kind: list(rows)}, style=style, table=print_table, rows=csv_rows)


def emit_one(data: Data, *, style: str) -> None:
    """Write one entry: every figure, and where it comes from."""
    def print_table() -> None:
        from autotune.report.console import Column, cell, console, show
        out = console()
        flat = [row for row in flatten(data) if row["value"] not in (None, "")]
        top = [row for row in flat if "." not in row["key"]]
        sections: dict[str, list[dict[str, Any]]] = {}
        for row in flat:
            if "." in row["key"]:
                sections.setdefault(row["key"].partition(".")[0], []).append(row)
        columns = [Column("key", right=False), Column("value", right=False)]
        show(out, columns, [(r["key"], _shown(r["key"], r["value"])) for r in top])
        if "source" in data:
            out.print(cell(f"source: {data['source']}"))
        for name, rows in sections.items():
            about = data[name]
            tag = f" ({about['provenance']})" if "provenance" in about else ""
            out.print()
            lines = [(r["key"].partition(".")[2], _shown("", r["value"])) for r in rows]
            show(out, columns, lines, title=f"{name}{tag}")
            if "source" in about:
                out.print(cell(f"source: {about['source']}"))

    emit(data, style=style, table=print_table, rows=lambda: _with_source(data))


def _with_source(data: Data) -> list[dict[str, Any]]:
    return [{"key": row["key"], "value": row["value"], "provenance": row.get("provenance", ""),
             "source": row.get("source", "")} for row in flatten(data)]
