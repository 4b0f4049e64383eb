"""The plainest simulation of a pipeline schedule: one candidate, a dictionary of ends.

Written from the text of the schedules, apart from the package's own tables, so that the two can
only agree by being right.
"""

from __future__ import annotations


def schedule_table(m, vpp, group):
    """(micro-batch, chunk) of each forward, as in Megatron's get_schedule_table."""
    table = []
    for first in range(0, m, group):
        members = range(first, min(first + group, m))
        table += [(i, v) for v in range(vpp) for i in members]
    return table


def rank_ops(kind, pp, vpp, m, group, rank):
    """[('F' or 'B', chunk, micro-batch), ...] in the order in which the rank runs them."""
    if kind == "gpipe":
        return [("F", v, i) for v in range(vpp) for i in range(m)] + [
            ("B", v, i) for v in reversed(range(vpp)) for i in range(m)]
    if kind == "1f1b":
        table, warmup = [(i, 0) for i in range(m)], pp - rank - 1
    else:
        table = schedule_table(m, vpp, group)
        warmup = (pp - rank - 1) * 2 + (vpp - 1) * group
    warmup = min(warmup, len(table))
    forwards = [("F", v, i) for i, v in table]
    backwards = [("B", vpp - 1 - v, i) for i, v in table]
    ops = forwards[:warmup]
    for k in range(len(table) - warmup):
        ops += [forwards[warmup + k], backwards[k]]
    return ops + backwards[len(table) - warmup:]


def simulate(kind, *, pp, vpp, m, group, forward, backward, edge):
    """End of each rank's last backward; forward[rank][chunk], backward[rank][chunk], edge [s]."""
    orders = [rank_ops(kind, pp, vpp, m, group, r) for r in range(pp)]
    last = pp * vpp - 1
    end, at, clock = {}, [0] * pp, [0.0] * pp
    while any(at[r] < len(orders[r]) for r in range(pp)):
        moved = False
        for r in range(pp):
            if at[r] == len(orders[r]):
                continue
            what, v, i = orders[r][at[r]]
            place = v * pp + r
            if what == "F":
                needed = None if place == 0 else ("F", place - 1, i)
            else:
                needed = ("F", place, i) if place == last else ("B", place + 1, i)
            if needed is not None and needed not in end:
                continue
            start = clock[r]
            if needed is not None:
                between_ranks = needed[1] % pp != r
                start = max(start, end[needed] + (edge if between_ranks else 0.0))
            clock[r] = start + (forward if what == "F" else backward)[r][v]
            end[what, place, i] = clock[r]
            at[r] += 1
            moved = True
        if not moved:
            raise ValueError("deadlock")
    return clock


def most_alive(ops, vpp):
    """Most activations alive at once, and all mixes (per chunk) seen."""
    alive, mixes = [0] * vpp, []
    for what, v, _ in ops:
        alive[v] += 1 if what == "F" else -1
        mixes.append(tuple(alive))
    return max(map(sum, mixes)), mixes
