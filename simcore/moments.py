"""What a rank holds beside its saves at each moment at which it can be fullest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.activations import boundary
from simcore.frame import Class, Frame
from simcore.head_activations import head_tensors
from simcore.inputs.fields import code
from simcore.inputs.model import MlpKind
from simcore.saved_memory import unit_layers
from simcore.terms import Term, total
from simcore.typing import FloatArray


@dataclass(frozen=True)
class Moment:
    """The fullest of some alternatives, and what is alive beside each of them.

    Parameters
    ----------
    alternatives : tuple of tuple of Term
        Of these only the fullest counts; none, where all are empty.
    beside : tuple of Term
    size : int
        Candidates, n.
    operators : tuple of str
        What runs at each of the alternatives; one name stands for all.
    """

    alternatives: tuple[tuple[Term, ...], ...]
    beside: tuple[Term, ...]
    size: int
    operators: tuple[str, ...]

    @property
    def bytes(self) -> FloatArray:
        """Bytes of the fullest, (n,) [B]."""
        most = np.zeros(self.size)
        for terms in self.alternatives:
            most = np.maximum(most, total(terms, self.size))
        return most + total(self.beside, self.size)

    def operator(self) -> str:
        """Name what runs at the fullest alternative, for a single candidate."""
        if len(self.operators) == 1:
            return self.operators[0]
        sums = [float(total(terms, 1)[0]) for terms in self.alternatives]
        return self.operators[sums.index(max(sums))]

    def terms(self) -> list[Term]:
        """What `bytes` sums, for a single candidate."""
        sums = [float(total(terms, 1)[0]) for terms in self.alternatives]
        most = max(sums, default=0.0)
        chosen = self.alternatives[sums.index(most)] if most > 0 else ()
        return [*chosen, *self.beside]


def moments(frame: Frame, c: Class, in_flight: FloatArray) -> tuple[Moment, ...]:
    """Find what lies beside the saves in forward, backward, the head and recomputation."""
    layers, whole = frame.stage(frame.tables.layers, c), frame.whole_layers(c)
    unit, size = unit_layers(frame), len(frame)
    forward, backward, recompute = [], [], []
    for k, cost in enumerate(frame.layer_costs):
        saved, present = cost.saved, (layers[:, k] > 0).astype(np.float64)
        again = (whole[:, k] > 0).astype(np.float64)
        running = Term("layer, backward", present, frame.spread(saved.backward),
                       saved.backward_tensors)
        forward.append((Term("layer, forward", present, frame.spread(saved.forward),
                             saved.forward_tensors),))
        backward.append((running,))
        recompute.append((
            Term("recomputed layer", again * unit, frame.spread(saved.full), saved.full_tensors),
            # The unit's input is kept already.
            Term("recomputed layers", -again, frame.boundary_bytes, (boundary(frame.local),)),
            running._replace(number=again)))
    sent, received = _gradients_between(frame, c, in_flight)
    kept, beside = head_tensors(frame.local)
    has_head = frame.stage(frame.tables.has_head, c)
    kept_head, beside_head = frame.costs.head_memory
    head = Term("head", has_head, frame.spread(kept_head + beside_head), (*kept, *beside))
    experts = [kind.mlp is not MlpKind.DENSE for kind in frame.model.kinds]
    outputs = tuple("un-permute of the experts' rows" if moe else "reduction of the MLP's output"
                    for moe in experts)
    gradients = tuple(f"backward of the {'experts' if moe else 'MLP'} activation"
                      for moe in experts)
    return (Moment(tuple(forward), (sent, received), size, outputs),
            Moment(tuple(backward), (sent,), size, gradients),
            Moment(((head,),), (sent.times(has_head),), size, (_head_operator(frame),)),
            Moment(tuple(recompute), (sent,), size,
                   tuple(f"{name} of a recomputed layer" for name in gradients)))


def _head_operator(frame: Frame) -> str:
    """What runs at the head's moment: the loss where it holds copies, else the product."""
    unfused = np.any(frame.local.batch["cross_entropy"] == code("cross_entropy", "unfused"))
    return "loss on fp32 logits" if unfused else "backward of the output layer"


def _gradients_between(frame: Frame, c: Class, in_flight: FloatArray) -> tuple[Term, Term]:
    """Gradients that the schedule's loop still holds.

    A stage after the first also holds the gradient that it sent last, and one before the last
    the gradient that it received for the micro-batch before: variables of the schedule's loop
    (``pipeline_parallel/schedules.py``), alive while the next forward runs.
    """
    later = (frame.stage(frame.tables.first_rank, c) > 0).astype(np.float64)
    steady = (frame.batch["vpp"] == 1) & (frame.microbatches > in_flight)
    before_last = frame.stage(frame.tables.last_rank, c) < frame.batch["pp"] - 1
    where = "pipeline"
    return (Term(where, later, frame.boundary_bytes,
                 (boundary(frame.local, "input_tensor_grad, sent"),)),
            Term(where, (steady & before_last).astype(np.float64), frame.boundary_bytes,
                 (boundary(frame.local, "output_tensor_grad, of the micro-batch before"),)))
