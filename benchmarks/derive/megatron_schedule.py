"""Record in which order Megatron-Core's own schedules run forwards and backwards.

The real `forward_backward_pipelining_with_interleaving` and `..._without_interleaving` run for one
pipeline rank at a time. Only their two steps are replaced, by ones that note the chunk and the
micro-batch, and the communicator, by one that returns at once. The tests compare
`simcore.schedule` with what this writes.

    python benchmarks/derive/megatron_schedule.py [--out tests/golden/schedule_orders.json]

Needs torch 2.13 and megatron-core 0.19.2 (installed with `--no-deps --ignore-requires-python`
under Python 3.11); takes some seconds.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import megatron_import  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
# Pipeline ranks, chunks (1: not interleaved), micro-batches, group size.
CASES = (
    (1, 1, 1, 1), (2, 1, 1, 2), (2, 1, 5, 2), (4, 1, 2, 4), (4, 1, 3, 4), (4, 1, 8, 4),
    (8, 1, 12, 8), (2, 2, 2, 2), (2, 2, 5, 3), (2, 3, 4, 2), (2, 3, 8, 3), (3, 2, 7, 4),
    (4, 2, 4, 4), (4, 2, 8, 4), (4, 2, 8, 8), (4, 2, 9, 5), (4, 4, 32, 4), (4, 5, 8, 4),
    (6, 2, 12, 6), (8, 2, 16, 8),
)


class Group:
    """A process group that knows its size and a rank."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class Config:
    """A configuration in which everything that is not given is off."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Communicator:
    """Stands in for `P2PCommunicator`: every exchange returns at once."""

    def __init__(self, config: Config, rank: int, pp: int, vpp: int) -> None:
        self.config = config
        self.pp_group = Group(rank, pp)
        self.virtual_pipeline_model_parallel_size = vpp if vpp > 1 else None
        self.current_stage, self.total_stages = rank, pp
        self.is_pp_first_stage, self.is_pp_last_stage = rank == 0, rank == pp - 1

    def _one(self, *_: Any, **__: Any) -> str:
        return "tensor"

    recv_forward = recv_backward = send_forward = send_backward = _one
    send_forward_recv_forward = send_backward_recv_backward = _one
    send_forward_recv_backward = send_backward_recv_forward = _one

    def send_forward_backward_recv_forward_backward(self, *_: Any, **__: Any) -> tuple[str, str]:
        return "tensor", "tensor"


def record(pp: int, vpp: int, num_microbatches: int, group_size: int, rank: int) -> list[str]:
    """Return what a rank runs: ``F`` or ``B``, the chunk, ``.``, the micro-batch."""
    import torch
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.process_groups_config import ProcessGroupCollection
    config = Config(microbatch_group_size_per_vp_stage=group_size, hidden_size=1,
                    virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None)
    order: list[str] = []

    def forward_step(*_: Any, current_microbatch: int, vp_stage: int | None = None,
                     **__: Any) -> tuple[str, int]:
        name = f"{vp_stage or 0}.{current_microbatch}"
        order.append("F" + name)
        return name, 0

    def backward_step(_: Any, output: str, *__: Any) -> str:
        order.append("B" + output)
        return "gradient"

    zeros = torch.zeros
    replaced = {"forward_step": forward_step, "backward_step": backward_step,
                "get_model_config": lambda _: config, "get_model_type": lambda _: None}
    kept = {name: getattr(schedules, name) for name in replaced}
    torch.zeros = lambda *a, **k: zeros(*a, **{**k, "device": "cpu"})  # no GPU is needed
    vars(schedules).update(replaced)
    chunks = [torch.nn.Module() for _ in range(vpp)]
    run = (schedules.forward_backward_pipelining_with_interleaving if vpp > 1
           else schedules.forward_backward_pipelining_without_interleaving)
    try:
        run(forward_step_func=None, data_iterator=[None] * vpp, model=chunks,
            num_microbatches=num_microbatches, seq_length=1, micro_batch_size=1,
            p2p_communicator=Communicator(config, rank, pp, vpp),
            pg_collection=ProcessGroupCollection(tp=Group(0, 1), cp=Group(0, 1),
                                                 pp=Group(rank, pp)))
    finally:
        torch.zeros = zeros
        vars(schedules).update(kept)
    return order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden/schedule_orders.json")
    out = parser.parse_args().out
    cases = [
        {"kind": "interleaved" if vpp > 1 else "1f1b", "pp": pp, "vpp": vpp,
         "num_microbatches": m, "group_size": n,
         "orders": [" ".join(record(pp, vpp, m, n, rank)) for rank in range(pp)]}
        for pp, vpp, m, n in CASES
    ]
    head = {"source": f"megatron-core {version('megatron-core')}, pipeline_parallel/schedules.py",
            "made_by": "benchmarks/derive/megatron_schedule.py",
            "notation": "F or B, chunk of the rank, '.', micro-batch; a list entry a rank"}
    out.write_text(json.dumps({**head, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
