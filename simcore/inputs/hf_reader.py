"""Take typed values out of a Hugging Face config and collect everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcore.errors import Issue, nearest
from simcore.inputs.model import Activation, AttentionKind

MAX_COUNT = 10_000_000
MAX_LAYERS = 4096
_REQUIRED = object()

_ACTIVATIONS = {
    "silu": Activation.SILU, "swish": Activation.SILU, "relu": Activation.RELU,
    "relu2": Activation.SQUARED_RELU, "squared_relu": Activation.SQUARED_RELU,
    "gelu": Activation.GELU, "gelu_new": Activation.GELU, "gelu_fast": Activation.GELU,
    "gelu_python": Activation.GELU, "gelu_pytorch_tanh": Activation.GELU,
}
_LAYER_TYPES = {"full_attention": AttentionKind.FULL, "sliding_attention": AttentionKind.SLIDING,
                "linear_attention": AttentionKind.LINEAR}

# What changes neither shapes nor the work of a training step, or belongs to the strategy.
_IGNORED = re.compile(
    r"_.*|.*_token_ids?|.*_token_index|.*drop(out)?(_prob)?|.*dropout.*|.*_eps|.*_epsilon"
    r"|(torch_)?dtype|transformers_version|auto_map|architectures|model_type|use_cache"
    r"|initializer_range|initializer_factor|init_.*|tokenizer_class|name_or_path|quantization.*"
    r"|rope_(?!attention).*|rotary_.*|partial_rotary_factor|original_max_position_embeddings"
    r"|initial_context_length|query_pre_attn_scalar|.*_logit_softcapping|attn_implementation"
    r"|norm_topk_prob|router_aux_loss_coef|router_jitter_noise|router_z_loss_coef"
    r"|output_router_logits|aux_loss_alpha|seq_aux|ep_size|n_group|topk_group|topk_method"
    r"|scoring_func|routed_scaling_factor|pretraining_tp|experts_per_token|swiglu_limit"
    r"|max_window_layers|sliding_window_pattern|full_attention_interval|n_ctx|qk_head_dim"
    r"|summary_.*|classifier_.*|scale_attn.*|reorder_and_upcast_attn|task_specific_params"
    r"|id2label|label2id|num_labels|problem_type|return_dict.*|output_.*|cache_implementation"
    r"|is_decoder|chunk_size_feed_forward|num_(beams?|beam_groups|return_sequences)"
    r"|gradient_checkpointing|use_mrope|unsloth_.*|finetuning_task|torchscript|use_bfloat16"
    r"|logit_scale|verbose|embedding_fraction|min_length|max_length|no_repeat_ngram_size"
    r"|encoder_no_repeat_ngram_size|length_penalty|repetition_penalty|diversity_penalty"
    r"|temperature|top_k|top_p|typical_p|do_sample|early_stopping|suppress_tokens|bad_words_ids"
    r"|begin_suppress_tokens|exponential_decay_length_penalty|remove_invalid_values|prefix"
    r"|forced_.*|tf_legacy_loss|use_return_dict")
_STRUCTURAL = re.compile(
    r"(^|_)(num|n|layers?|heads?|hidden|inter(mediate)?|ffn|mlp|experts?|moe|attn|attention|norms?"
    r"|layernorm|bias|window|rank|kernel|conv|state|ssm|mamba|mtp|nextn|emb\w*|vocab|dims?|d|size"
    r"|shared?|sharing|lora|gated?|multiplier|block|index|parallel|residual|cross|encoder|qk|kv|qkv"
    r"|config|step|interval|altup|laurel|topk|chunk)(_|$)")
_REASONS = {
    "vision_config": "multimodal models are not modelled; give the text model's config",
    "audio_config": "multimodal models are not modelled; give the text model's config",
    "text_config": "multimodal models are not modelled; give the text model's config",
    "is_encoder_decoder": "only decoder-only models are modelled",
    "add_cross_attention": "cross-attention is not modelled",
    "index_topk": "sparse attention with an indexer is not modelled",
    "pruned_heads": "pruned heads are not modelled",
    "use_bidirectional_attention": "only causal attention is modelled",
}


@dataclass
class Reader:
    """A config that is being read; every problem goes to `issues`, with file and key.

    Parameters
    ----------
    config : mapping
        Keys of the `config.json`.
    where : str
        The file, put in front of every key in messages.
    names : mapping
        Keys that this family writes otherwise (``{"hidden_size": "n_embd"}``); both are read.
    """

    config: Mapping[str, object]
    where: str
    names: Mapping[str, str] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def fail(self, key: str, message: str, fix: str = "") -> None:
        """Note that a key's value cannot be used."""
        self.issues.append(Issue(f"{self.where}: {key}", message, fix))

    def raw(self, key: str) -> tuple[str, object, bool]:
        """Return the key as the file writes it, its value, and whether it is there."""
        other = self.names.get(key)
        self.seen.update((key, *([other] if other else [])))
        found = [k for k in (other, key) if k is not None and k in self.config]
        if len(found) == 2 and self.config[found[0]] != self.config[found[1]]:
            self.fail(found[0], f"and {found[1]} mean the same and differ")
        if found:
            return found[0], self.config[found[0]], True
        return key, None, False

    def count(self, key: str, default: int | object = _REQUIRED, *, minimum: int = 1,
              maximum: int = MAX_COUNT) -> int:
        """Return a whole number; missing or null takes the default, if there is one.

        A bad value is noted and `minimum` (at least 1) stands in, so that reading can go on.
        """
        name, value, _ = self.raw(key)
        if value is None:
            if isinstance(default, int):
                return default
            other = self.names.get(key)
            self.fail(name, f"is needed (or {other})" if other else "is needed")
            return max(minimum, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not (
                minimum <= value <= maximum):
            self.fail(name, f"must be a whole number from {minimum} to {maximum}, "
                            f"got {str(value)[:60]!r}")
            return max(minimum, 1)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; missing or null takes the default."""
        name, value, _ = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, got {str(value)[:60]!r}")
            return default
        return value

    def activation(self, *keys: str, default: str) -> Activation:
        """Return the MLP's non-linearity from the first of these keys that is there."""
        found = [(k, self.config[k]) for k in keys if self.config.get(k) is not None]
        self.seen.update(keys)
        key, value = found[0] if found else (keys[0], default)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            self.fail(key, f"{str(value)[:60]!r} is not modelled", nearest(
                str(value), tuple(_ACTIVATIONS)))
            return Activation.SILU
        return _ACTIVATIONS[value]

    def indices(self, key: str, limit: int) -> frozenset[int]:
        """Return a list of layer indices as a set; missing or null is empty."""
        name, value, _ = self.raw(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or any(
                isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < limit
                for i in value):
            self.fail(name, f"must be a list of layer indices from 0 to {limit - 1}")
            return frozenset()
        return frozenset(value)

    def layer_types(self, num_layers: int,
                    default: Sequence[AttentionKind]) -> tuple[AttentionKind, ...]:
        """Return the attention of every layer as the shortest pattern that repeats."""
        name, value, _ = self.raw("layer_types")
        kinds = list(default)
        if isinstance(value, list) and len(value) == num_layers:
            unknown = sorted({str(v)[:40] for v in value
                              if not isinstance(v, str) or v not in _LAYER_TYPES})
            if unknown:
                self.fail(name, f"{unknown[0]!r} is not modelled",
                          nearest(unknown[0], tuple(_LAYER_TYPES)))
            else:
                kinds = [_LAYER_TYPES[v] for v in value]
        elif value is not None:
            self.fail(name, f"must be a list with a type for each of the {num_layers} layers")
        return shortest_pattern(kinds)

    def check_rest(self, known: Sequence[str] = ()) -> None:
        """Refuse keys that were not read and would change the model.

        A key is refused where it is known not to be modelled, where it looks like a misspelt
        key that matters, or where its name speaks of shapes and its value is not empty. Keys
        about generation, initialisation, checkpoints or dropout are left alone.
        """
        for key, value in self.config.items():
            if key in self.seen or key in known:
                continue
            inert = value is None or value in (False, 0, "", [], {})
            if key in _REASONS:
                if not inert:
                    self.fail(key, f"is not modelled: {_REASONS[key]}")
            elif not _IGNORED.fullmatch(key) and not inert and _STRUCTURAL.search(key):
                hint = nearest(key, sorted(self.seen))
                self.fail(key[:80], "is not a key that this model_type is known to have, and "
                          "may change the model, so it is not ignored",
                          hint if hint.startswith("did") else "remove it if it changes nothing")


def shortest_pattern(kinds: Sequence[AttentionKind]) -> tuple[AttentionKind, ...]:
    """Return the shortest beginning of a list whose repetition gives the list."""
    size = len(kinds)
    for period in range(1, size):
        if all(kinds[i] is kinds[i % period] for i in range(size)):
            return tuple(kinds[:period])
    return tuple(kinds)
