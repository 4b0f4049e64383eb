"""What a class of pipeline ranks holds of a model's parameters, before it is sharded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simcore.parameters import (
    Parameter,
    embedding_tensors,
    final_norm_parameters,
    mtp_tensors,
    padded_vocab,
)
from simcore.states import is_muon
from simcore.typing import FloatArray

if TYPE_CHECKING:
    from simcore.frame import Class, Frame


@dataclass(frozen=True)
class ClassParameters:
    """Parameters of a rank, dense and expert, and some of them, (n,).

    Parameters
    ----------
    dense, expert : ndarray
        All of them.
    dense_matrices, expert_matrices : ndarray
        Those in matrices that have copies in low precision.
    dense_hidden, expert_hidden : ndarray
        Those in matrices other than embedding and head, where Muon updates these; else 0.
    dense_largest, expert_largest : ndarray
        Of these, those in the largest matrix.
    """

    dense: FloatArray
    expert: FloatArray
    dense_matrices: FloatArray
    expert_matrices: FloatArray
    dense_hidden: FloatArray
    expert_hidden: FloatArray
    dense_largest: FloatArray
    expert_largest: FloatArray


class Holding(NamedTuple):
    """So many of a part of the model.

    Parameters
    ----------
    name : str
    number : ndarray, shape (n,)
    dense, expert : ndarray, shape (n,), or None
        Values of one; None: it has none.
    tensors : callable
        Gives its parameters, arrays of shape (u,), whose values add up to these.
    """

    name: str
    number: FloatArray
    dense: FloatArray | None
    expert: FloatArray | None
    tensors: Callable[[], list[Parameter]]


def holdings(frame: Frame, c: Class) -> list[Holding]:
    """Find the parts of the model on the ranks of class c."""
    tables, model, tp = frame.tables, frame.model, frame.local.tp
    embedding, head, _ = frame.costs.end_parameters
    norm = final_norm_parameters(model)
    layers, moe = frame.stage(tables.layers, c), model.is_moe
    has_embedding, has_head = (frame.stage(flag, c).astype(np.float64)
                               for flag in (tables.has_embedding, tables.has_head))
    mtp_here = frame.mtp_here(c) if frame.has_mtp else None
    if mtp_here is not None:
        # MTP shares the embedding; away from rank 0 it holds a copy.
        has_embedding = np.where(mtp_here > 0, 1.0, has_embedding)
    # On one rank a tied head is the embedding itself; its final norm stays.
    own_head = has_head * ~(model.tied_embeddings & (has_embedding > 0))
    found = [
        Holding("embedding", has_embedding, frame.spread(embedding), None,
                lambda: embedding_tensors(model, tp=tp)),
        Holding("output_layer", own_head, frame.spread(head - norm), None,
                lambda: [Parameter("weight", (padded_vocab(model, tp) / tp,
                                              float(model.hidden_size)))]),
        Holding("final_layernorm", has_head, np.full(len(frame), norm), None,
                lambda: [Parameter("weight", (norm,))])]
    for k, cost in enumerate(frame.layer_costs):
        found.append(Holding("layers", layers[:, k], frame.spread(cost.parameters.dense),
                             frame.spread(cost.parameters.expert) if moe else None,
                             partial(getattr, cost, "tensors")))
    if mtp_here is not None:
        own, layer = frame.costs.end_parameters[2], frame.layer_costs[model.layers[-1]]
        found.append(Holding("mtp", mtp_here, frame.spread(own.dense),
                             frame.spread(own.expert) if moe else None,
                             lambda: [*mtp_tensors(model, tp=tp), *layer.tensors]))
    return found


def class_parameters(frame: Frame, c: Class) -> ClassParameters:
    """Count the parameters that a rank of class c holds."""
    zero = np.zeros(len(frame))
    dense, expert, low_dense, low_expert = zero, zero, zero, zero
    for part in holdings(frame, c):
        if part.dense is not None:
            dense = dense + part.number * part.dense
        if part.expert is not None:
            expert = expert + part.number * part.expert
    layers = frame.stage(frame.tables.layers, c)
    for k, cost in enumerate(frame.layer_costs):
        low_dense = low_dense + layers[:, k] * frame.spread(cost.matrices.dense)
        if frame.model.is_moe:
            low_expert = low_expert + layers[:, k] * frame.spread(cost.matrices.expert)
    hidden = _hidden(frame, c) if np.any(is_muon(frame.batch)) else (zero,) * 4
    return ClassParameters(dense, expert, low_dense, low_expert, *hidden)


def _hidden(frame: Frame, c: Class) -> tuple[FloatArray, ...]:
    """Values in matrices of the layers, where Muon updates them, dense and expert, and
    those of the largest one, (n,)."""
    layers = frame.stage(frame.tables.layers, c)
    found = [np.zeros(len(frame)) for _ in range(4)]
    for k, cost in enumerate(frame.layer_costs):
        counts = layers[:, k]
        if frame.has_mtp and k == frame.model.layers[-1]:
            counts = counts + frame.mtp_here(c)
        for at, hidden, largest in ((0, cost.hidden.dense, cost.largest.dense),
                                    (1, cost.hidden.expert, cost.largest.expert)):
            found[at] = found[at] + counts * frame.spread(hidden)
            found[at + 2] = np.maximum(found[at + 2], (counts > 0) * frame.spread(largest))
    if frame.has_mtp:
        found[0] = found[0] + frame.mtp_here(c) * frame.spread(frame.costs.mtp_projection)
    return tuple(values * is_muon(frame.batch) for values in found)
