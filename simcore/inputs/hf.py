"""A Hugging Face `config.json` as a `ModelSpec`.

What a config leaves out takes the default of the family's class in `transformers` 5. What cannot
be expressed is refused by name, never approximated.
"""

from __future__ import annotations

from collections.abc import Mapping

from simcore.errors import InputError, Issue, nearest
from simcore.inputs.hf_families import FAMILIES, Family
from simcore.inputs.hf_reader import MAX_LAYERS, Reader
from simcore.inputs.model import ModelSpec, Norm
from simcore.inputs.yaml_io import validate

MODEL_TYPES = {
    **{name: name for name in FAMILIES},
    "kimi_k2": "deepseek_v3",
}
"""`model_type` of a config, and the family that it is read as."""

NOT_MODELLED = {
    "minimax": "its lightning attention is no linear attention that is modelled",
    "nemotron_h": "its layers hold one of Mamba, attention or MLP alone",
    "mamba": "state-space layers are not modelled",
    "mamba2": "state-space layers are not modelled",
    "jamba": "state-space layers are not modelled",
    "llama4": "its chunked attention is not modelled",
}
"""Families that are known and refused, and why."""

_DEFAULT_SEQ_LEN = 4096
_LLAMA3_SEQ_LEN = 8192
_LLAMA3_VOCAB = 128256
_HEADS = ("ForCausalLM", "LMHeadModel")


def model_from_hf(config: Mapping[str, object], *, name: str, where: str) -> ModelSpec:
    """Read a Hugging Face config.

    Parameters
    ----------
    config : mapping
        Keys of the `config.json`.
    name : str
        Name of the model.
    where : str
        The file, for messages.

    Returns
    -------
    ModelSpec
        `seq_len` is 8192 for a Llama 3 vocabulary, else 4096, and at most
        `max_position_embeddings`.

    Raises
    ------
    InputError
        Unknown `model_type`, or a key that is missing, malformed or not modelled; all at once.
    """
    model_type = _model_type(config, where)
    family = FAMILIES[MODEL_TYPES[model_type]]
    reader = Reader(config, where, family.names)
    reader.seen.update(("model_type", "architectures"))
    fields = _common(reader, family)
    fields.update(family.fields)
    fields.update(family.read(reader, fields))
    reader.check_rest()
    if reader.issues:
        raise InputError(reader.issues)
    seq_len = _DEFAULT_SEQ_LEN
    if fields["vocab_size"] == _LLAMA3_VOCAB:
        seq_len = _LLAMA3_SEQ_LEN
    return validate(ModelSpec, {
        "name": name, "family": model_type,
        "source": f"Hugging Face config, model_type {model_type}",
        "seq_len": min(seq_len, int(str(fields["max_position_embeddings"]))), **fields,
    }, where=where)


def _model_type(config: Mapping[str, object], where: str) -> str:
    """Check what kind of model the config says it is; without a `model_type`, by its class."""
    classes = config.get("architectures")
    names = [c for c in classes if isinstance(c, str)] if isinstance(classes, list) else []
    wrong = [c for c in names if "For" in c and not c.endswith(_HEADS)]
    model_type = config.get("model_type")
    if model_type is None:
        known = {t.replace("_", ""): t for t in MODEL_TYPES}
        stems = [c.removesuffix(h).lower() for c in names for h in _HEADS if c.endswith(h)]
        found = [known[s] for s in stems if s in known]
        model_type = found[0] if found else None
    if model_type is None:
        raise InputError(Issue(f"{where}: model_type", "is needed",
                               f"known: {', '.join(sorted(MODEL_TYPES))}"))
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        why = NOT_MODELLED.get(str(model_type))
        raise InputError(Issue(f"{where}: model_type", f"{str(model_type)[:60]!r} is not modelled"
                               + (f": {why}" if why else ""),
                               nearest(str(model_type), sorted(MODEL_TYPES))))
    if wrong:
        raise InputError(Issue(f"{where}: architectures", f"{wrong[0][:80]!r} is not modelled: "
                               "only decoder-only language models with a head over the "
                               "vocabulary are"))
    return model_type


def _common(reader: Reader, family: Family) -> dict[str, object]:
    """Read what every family has; rules between keys are checked where these are sound."""
    hidden = reader.count("hidden_size")
    heads = reader.count("num_attention_heads", maximum=16384)
    head_dim = reader.count("head_dim", family.head_dim)
    if not head_dim:
        head_dim = max(1, hidden // heads)
        if hidden % heads and not reader.issues:
            reader.fail("hidden_size", f"must be a multiple of num_attention_heads ({heads}) "
                        f"where head_dim is not given, got {hidden}")
    # A null means one key head for every query head; only a missing key takes the default.
    _, _, given = reader.raw("num_key_value_heads")
    groups = reader.count("num_key_value_heads",
                          heads if given else family.num_key_value_heads or heads, maximum=16384)
    if family.mla:
        groups = heads
    elif heads % groups and not reader.issues:
        reader.fail("num_key_value_heads", f"must divide num_attention_heads ({heads}), "
                    f"got {groups}")
    tied = reader.flag("tie_word_embeddings", default=family.tied)
    return {
        "num_layers": reader.count("num_hidden_layers", maximum=MAX_LAYERS),
        "hidden_size": hidden, "num_attention_heads": heads, "num_query_groups": groups,
        "head_dim": head_dim,
        "ffn_hidden_size": reader.count("intermediate_size",
                                        *([4 * hidden] if family.wide_mlp else [])),
        "activation": str(reader.activation("hidden_act", "hidden_activation",
                                            "activation_function", default=family.activation)),
        "vocab_size": reader.count("vocab_size"),
        "max_position_embeddings": reader.count("max_position_embeddings",
                                                family.max_position_embeddings),
        "tied_embeddings": tied, "normalization": str(Norm.RMSNORM),
    }
