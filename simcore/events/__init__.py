"""One step of one strategy as events: what every pipeline rank does, and when.

`simulate_step` runs the schedule by a queue of events, which makes it the reference that the
vectorised prediction is tested against; `operator_spans` opens an operation into its operators.
"""

from simcore.events.memory import MemoryTrack, memory_track
from simcore.events.operators import OperatorSpan, operator_spans
from simcore.events.queue import Run, run_orders
from simcore.events.step import Step, simulate_step

__all__ = ["MemoryTrack", "OperatorSpan", "Run", "Step", "memory_track", "operator_spans",
           "run_orders", "simulate_step"]
