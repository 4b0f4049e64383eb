"""Pipeline schedules: orders, the exact recurrence, activations in flight."""

from simcore.schedule.base import (
    KINDS,
    in_flight_by_chunk,
    in_flight_chunks,
    lower_bound_s,
    makespan,
)

__all__ = ["KINDS", "in_flight_by_chunk", "in_flight_chunks", "lower_bound_s", "makespan"]
