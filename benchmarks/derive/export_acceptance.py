"""Export against Megatron-LM's own validation: what searches rank, and random strategies.

    python benchmarks/derive/export_acceptance.py [--searched 500] [--random 2000] [--seed 0]

Prints how many ranked strategies Megatron accepts with the same meaning, and on random ones every
difference between our rules and Megatron's, with an example of each.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from typing import Any

from megatron_arguments import differences, judge, pretend

from autotune.formats.megatron_export import export_megatron
from autotune.formats.megatron_model_export import add_model
from autotune.search import Problem, search
from autotune.space import default_space
from simcore.batch import Batch
from simcore.errors import InputError
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.resolve import resolve
from simcore.rules import check

MODELS = {"llama3-8b": 64, "llama3-70b": 512, "llama3.1-405b": 2048, "mistral-7b": 32,
          "qwen2.5-32b": 128, "qwen3-14b": 64, "nemotron4-15b": 64, "gpt3-175b": 1024,
          "mixtral-8x7b": 128, "qwen3-30b-a3b": 64, "qwen3-235b-a22b": 512,
          "deepseek-v3": 1024}
DRAWN: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8], "cp": [1, 1, 2], "pp": [1, 2, 4, 8, 16], "vpp": [1, 1, 2, 3, 4],
    "mbs": [1, 2], "gbs": [None, 256, 1000], "sp": [None, True, False],
    "zero": [None, 0, 1], "recompute": [None, "full", "mlp", "layernorm", "core_attn+mlp",
                                        "moe_act", "mla_up_proj"],
    "recompute_layers": [None, None, 2, 6], "precision": ["bf16", "bf16", "fp8-cs", "fp8-ds"],
    "overlap_grad_reduce": [None, True, False], "overlap_param_gather": [None, True, False],
    "tp_comm_overlap": [None, None, True], "overlap_p2p": [None, None, False],
    "first_stage_layers": [None, None, None, 3, 6]}
DRAWN_MOE: dict[str, list[Any]] = {
    "ep": [1, 2, 4, 8, 16], "etp": [None, 1, 2], "dispatcher": [None, "allgather", "deepep"],
    "capacity_factor": [None, None, 1.25], "pad_to_capacity": [None, True],
    "shared_expert_overlap": [None, True], "ep_comm_overlap": [None, None, True]}

REASONS = {
    "flex_dispatcher_needs_ranks": "refused later, by MoEFlexTokenDispatcher (TPxEP > 1)",
    "moe_with_tp_needs_sp": "refused later, by MoELayer in training",
    "gpus_divide_by_expert_grid": "refused later, by parallel_state.initialize_model_parallel",
    "layers_divide": "layers of a stage at pp 1, where no argument is written",
    "recompute_layers_need_full": "a number of layers without full has no argument",
    "recompute_what_exists": "modules that the model does not hold are ignored in silence",
    "shared_expert_overlap_needs": "ignored in silence where there is no shared expert",
    "sp_needs_tp": "turned off in silence at tp 1"}
"""Why our rules refuse what Megatron-LM's validation lets pass."""


def row_of(model: Any, system: Any, strategy: Strategy) -> tuple[dict[str, Any], bool, str]:
    """Every field resolved, whether our rules take it, and what they say."""
    given = Batch.from_strategies([strategy])
    batch = resolve(model, system, given)
    report = check(model, system, batch, given=given)
    row = dict(batch.row(0).items())
    row["dp"] = row["gpus"] // (row["tp"] * row["cp"] * row["pp"])
    legal = bool(report.ok[0])
    return row, legal, "" if legal else next(iter(report.tally()))


def verdict(model: Any, system: Any, row: dict[str, Any]) -> tuple[str, str]:
    """``accepted``, ``refused``, ``differs`` or ``unwritten`` (export itself refuses)."""
    out = export_megatron(model, system, row)
    add_model(out, model, row["seq_len"])
    if out.issues:
        return "unwritten", str(out.issues[0])
    args, message = judge(out.args, out.to_dict()["env"], row["gpus"])
    if args is None:
        return "refused", message
    wrong = differences(args, row, is_moe=model.is_moe)
    return ("differs", "; ".join(wrong)) if wrong else ("accepted", "")


def searched(count: int) -> Counter[str]:
    """Export what searches rank."""
    system, done, found = load_system("h100-sxm"), 0, Counter[str]()
    if not count:
        return found
    each = -(-count // len(MODELS))
    for name, gpus in MODELS.items():
        model = load_model(name)
        space = default_space(model).override({"gpus": gpus})
        result = search(Problem(model=model, system=system, space=space, top=each))
        for entry in result.to_dict()["ranked"][:count - done]:
            what, why = verdict(model, system, entry["strategy"])
            found[what] += 1
            done += 1
            if what != "accepted":
                print(f"  {name}: {what}: {why}")
    return found


def drawn(count: int, seed: int) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Compare legality on random strategies."""
    rng, system = random.Random(seed), load_system("h100-sxm")
    found, reasons = Counter[str](), {"ours": Counter[str](), "theirs": Counter[str]()}
    for _ in range(count):
        name = rng.choice(sorted(MODELS))
        model = load_model(name)
        fields = {**DRAWN, **(DRAWN_MOE if model.is_moe else {})}
        # Few fields at a time: with all of them nothing would be legal.
        given = {f: rng.choice(fields[f]) for f in rng.sample(sorted(fields), 5)}
        given = {f: v for f, v in given.items() if v is not None}
        try:
            row, legal, rule = row_of(model, system, Strategy(gpus=64, **given))
        except InputError as error:
            found["unreadable"] += 1
            reasons["ours"][str(error)[:80]] += 1
            continue
        what, why = verdict(model, system, row)
        if what == "unwritten":
            found["not to be written"] += 1
            continue
        theirs = what != "refused"
        found[f"ours {'legal' if legal else 'illegal'}, Megatron's "
              f"{'legal' if theirs else 'illegal'}"] += 1
        found["legal, but means another"] += legal and what == "differs"
        if legal and what == "differs":
            reasons["theirs"]["DIFFERS " + why[:150]] += 1
        if legal and not theirs:
            reasons["theirs"][why[:150]] += 1
        if theirs and not legal:
            reasons["ours"][rule] += 1
    return found, reasons


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searched", type=int, default=500)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the random strategies")
    asked = parser.parse_args()
    pretend()
    print("searched:", dict(searched(asked.searched)))
    found, reasons = drawn(asked.random, asked.seed)
    print("random:", dict(found))
    for title, side in (("refused by our rules alone", "ours"),
                        ("refused by Megatron alone", "theirs")):
        print(title)
        for why, number in reasons[side].most_common():
            print(f"  {number:5d}  {why}: {REASONS.get(why, 'no reason listed')}")


if __name__ == "__main__":
    main()
