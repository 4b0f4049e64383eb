"""From text to values, to codes and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError, Issue
from simcore.inputs.codec import decode, encode, parse
from simcore.inputs.fields import CUDA_GRAPH_SCOPES, FIELD, FIELDS, Field, Kind, code
from simcore.inputs.strategy import Strategy


def values(field: Field) -> st.SearchStrategy[object]:
    match field.kind:
        case Kind.INT:
            return st.integers(int(field.minimum), int(field.maximum))
        case Kind.FLOAT:
            return st.floats(field.minimum, field.maximum)
        case Kind.BOOL:
            return st.booleans()
        case Kind.ENUM:
            return st.sampled_from([c for c in field.choices if c not in field.not_modelled])
        case Kind.TEXT:
            return st.sampled_from(["none", "auto", "4|4|4|1m", "Et*4|(t*4|)*14tmL", "26.02.01"])
        case Kind.MODULES if field.name == "cuda_graph":
            scopes = [s for s in CUDA_GRAPH_SCOPES if s != "full_iteration"]
            inner = st.lists(st.sampled_from(scopes), min_size=1, unique=True).map(
                lambda names: "transformer_engine:" + "+".join(s for s in scopes if s in names))
            return st.one_of(st.just("none"), st.just("local:full_iteration"), inner)
        case _:
            modules = [m for m in field.choices if m not in ("full", "selective_op")]
            inner = st.lists(st.sampled_from(modules), min_size=1, unique=True).map(
                lambda names: "+".join(m for m in modules if m in names))
            return st.one_of(st.sampled_from(["none", "full", "selective_op"]), inner)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_parse_encode_decode(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(FIELDS))
    value = data.draw(values(field))
    for raw in (value, str(value).lower() if field.kind is Kind.BOOL else str(value)):
        parsed = parse(field, raw)
        assert parsed == value, (field.name, raw)
        assert type(parsed) is type(value)
    texts = ["first"]
    number = encode(field, value, texts)  # type: ignore[arg-type]
    assert decode(field, number, tuple(texts)) == value
    assert texts[0] == "first"


@pytest.mark.parametrize(("name", "raw", "part"), [
    ("tp", "0", "from 1 to 4096"), ("tp", "-1", "from 1"), ("tp", "two", "whole number"),
    ("tp", 1.5, "whole number"), ("tp", True, "whole number"), ("tp", "nan", "whole"),
    ("tp", "inf", "whole"), ("tp", [1], "whole"), ("tp", "9" * 400, "whole"),
    ("optimizer_offload", 1.5, "from 0 to 1"), ("sp", "perhaps", "true or false"),
    ("precision", "bf32", "one of"),
    ("schedule", "dualpipes", "one of"), ("cp_comm", "ring", "one of"),
    ("recompute", "mlp+mlp", "twice"),
    ("recompute", "full+mlp", "stands alone"), ("recompute", "everything", "not one of"),
    ("cuda_graph", "local:attn", "full iteration"), ("pp_layout", "4;4", "text"),
    ("pp_layout", "x" * 5000, "text"), ("recompute", "local:mlp", "prefix"),
])
def test_bad_values_are_refused_by_name(name: str, raw: object, part: str) -> None:
    issue = parse(FIELD[name], raw, where="run.yaml: ")
    assert isinstance(issue, Issue)
    assert issue.where == f"run.yaml: {name}"
    assert part in issue.message
    assert issue.fix
    assert len(str(issue)) < 600


def test_spellings() -> None:
    assert parse(FIELD["tp"], " 8 ") == 8
    assert parse(FIELD["tp"], 8.0) == 8
    assert parse(FIELD["sp"], "On") is True
    assert parse(FIELD["sp"], 0) is False
    assert parse(FIELD["recompute"], "MLP + core_attn") == "core_attn+mlp"
    assert parse(FIELD["recompute"], "mlp,core_attn") == "core_attn+mlp"
    assert parse(FIELD["cuda_graph"], "attn") == "transformer_engine:attn"
    assert parse(FIELD["pp_layout"], "Ettt|(tt|)*29,m|L") == "Ettt|(tt|)*29,m|L"
    assert code("precision", "bf16") == 0


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Strategy.from_mapping({"tp": 0, "precison": "bf16", "gbs": "many"})
    assert [issue.where for issue in caught.value.issues] == ["tp", "precison", "gbs"]
    assert "precision" in caught.value.issues[1].fix
