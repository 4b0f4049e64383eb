"""The table of Megatron's arguments against Megatron's own parser."""

from __future__ import annotations

import argparse

import pytest

from autotune.formats import megatron_flags
from autotune.formats.megatron_flags import (
    CHOICES,
    MODEL_FLAGS,
    OLDER_OPTIONS,
    OTHER_OPTIONS,
    STRATEGY_FLAGS,
)
from simcore.inputs.fields import FIELD, RECOMPUTE_MODULES


def test_every_row_names_a_field_and_legal_values() -> None:
    assert {f.field for f in STRATEGY_FLAGS} <= set(FIELD)
    for field, values in CHOICES.items():
        legal = FIELD[field].choices
        assert set(values) <= set(legal) if legal else all(v.isdigit() for v in values)
    assert set(megatron_flags.RECOMPUTE_MODULES) <= set(RECOMPUTE_MODULES)
    assert len({f.dest for f in (*STRATEGY_FLAGS, *MODEL_FLAGS)}) == len(
        (*STRATEGY_FLAGS, *MODEL_FLAGS))


@pytest.mark.oracle
def test_rows_equal_the_real_parser() -> None:
    arguments = pytest.importorskip("megatron.training.arguments",
                                    reason="Megatron-LM is not installed")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    by_option = {o: a for a in parser._actions for o in a.option_strings}
    for flag in (*STRATEGY_FLAGS, *MODEL_FLAGS):
        action = by_option[flag.option]
        assert action.dest == flag.dest
        default = action.default[0] if isinstance(action.default, list) else action.default
        assert default == flag.default, flag.option
        kind = type(action).__name__
        assert kind == {"store": "_StoreAction", "true": "_StoreTrueAction",
                        "false": "_StoreFalseAction"}[flag.action], flag.option
    for dest in {d for v in CHOICES.values() for c in v.values() for d in c}:
        option = OTHER_OPTIONS.get(dest, "--" + dest.replace("_", "-"))
        assert by_option[option].dest == dest
    assert set(OLDER_OPTIONS) - {"--overlap-p2p-communication"} <= set(by_option)
