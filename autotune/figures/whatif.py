"""Curves of a varied figure."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.figures.base import BLUE, Data, Spec, axis, figure, values


def curve(name: str, base: float, points: Sequence[Data]) -> Spec:
    """Throughput of the best strategy over the values of a figure.

    Parameters
    ----------
    name : str
        The figure.
    base : float
        Its value today, drawn as a line.
    points : sequence of mapping
        ``value``, ``tokens_per_s_per_gpu``, ``layout``.
    """
    rows = [dict(p) for p in points]
    first, last = rows[0], rows[-1]
    return figure(
        f"Throughput over {name}",
        f"From {first['value']:g} to {last['value']:g}: {first['tokens_per_s_per_gpu']:,.0f} to "
        f"{last['tokens_per_s_per_gpu']:,.0f} tokens a second and GPU, the best strategy at each "
        "point.", height=280, layer=[
            {"data": values(rows), "mark": {"type": "line", "color": BLUE}, "encoding": {
                "x": axis("value", name, scale={"type": "log"}),
                "y": axis("tokens_per_s_per_gpu", "tokens/s/GPU", scale={"zero": False})}},
            {"data": values(rows), "mark": {"type": "point", "filled": True, "size": 60},
             "encoding": {
                "x": axis("value", name), "y": axis("tokens_per_s_per_gpu", "tokens/s/GPU"),
                "color": axis("layout", "best strategy", "nominal", legend={"labelLimit": 260}),
                "tooltip": [axis("value", name, format=".5g"),
                            axis("tokens_per_s_per_gpu", "tokens/s/GPU", format=",.0f"),
                            axis("layout", "best", "nominal")]}},
            {"data": values([{"base": base}]),
             "mark": {"type": "rule", "strokeDash": [6, 4], "color": "#888"},
             "encoding": {"x": axis("base", name)}}])
