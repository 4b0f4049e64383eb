"""SimuMax's three JSON files: model, strategy and system.

Units: its ``gbps`` are multiplied by 2^30 and ``mem_gbs`` are GiB.

References
----------
SimuMax 1.2 (Apache-2.0), ``simumax/core/config.py``: fields and defaults of `ModelConfig`,
`StrategyConfig` and `SystemConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.formats.imported import Arguments, Data, Ignored, Imported
from simcore.units import GB, GIB

_MODEL_QUIET = ("model_type", "model_name", "attention_type", "group_query_attention",
                "make_vocab_size_divisible_by", "padded_vocab_size", "norm_type")
_STRATEGY_QUIET = {
    "mem_factor": "", "enable_dropout": "", "moe_dispatcher_policy": "", "use_fused_norm": "",
    "use_math_sdp": "", "attention_sparse_ratio": "",
}
_NETS = ("tp_net", "cp_net", "pp_net", "dp_net", "ep_net", "etp_net", "edp_net")


def model_from(raw: Mapping[str, object], *, where: str, name: str) -> Imported:
    """Read a model; its capacity goes into the strategy."""
    a = Arguments(raw, where)
    kind = a.text("model_type", "dense")
    layers, hidden = a.number("layer_num"), a.number("hidden_size")
    heads, width = a.number("head_num"), a.number("intermediate_size")
    vocab = a.number("vocab_size")
    for key in ("layer_num", "hidden_size", "head_num", "intermediate_size", "vocab_size"):
        if a.number(key) is None:
            a.fail(key, "is needed")
    gated = a.flag("use_swiglu", default=True)
    model: Data = {
        "name": str(raw.get("model_name") or name), "family": "custom", "source": "SimuMax model",
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_query_groups": a.number("kv_head_num", heads),
        "head_dim": a.number("head_size") or (hidden or 1) // (heads or 1),
        "ffn_hidden_size": width, "gated_mlp": gated,
        "activation": "silu" if gated else "gelu", "vocab_size": vocab, "seq_len": 4096,
        "max_position_embeddings": 4096}
    if a.text("attention_type", "mha") == "mla":
        mla = {"q_lora_rank": a.number("q_lora_rank", 0),
               "kv_lora_rank": a.number("kv_lora_rank", 512),
               "qk_nope_head_dim": a.number("qk_head_dim", 128),
               "qk_rope_head_dim": a.number("qk_pos_emb_head_dim", 64),
               "v_head_dim": a.number("v_head_dim", 128)}
        model.update(mla=mla, num_query_groups=heads,
                     head_dim=(mla["qk_nope_head_dim"] or 0) + (mla["qk_rope_head_dim"] or 0))
    else:
        # Files of models without latent attention may carry its sizes; SimuMax reads none then.
        a.read.update(("v_head_dim", "qk_head_dim", "qk_pos_emb_head_dim", "q_lora_rank",
                       "kv_lora_rank"))
    strategy: Data = {}
    experts = a.number("expert_num")
    if kind == "moe" or (experts or 1) > 1:
        moe: Data = {"num_experts": experts, "topk": a.number("topk"),
                     "ffn_hidden_size": a.number("moe_ffn_hidden_size") or width}
        if shared := a.number("moe_shared_expert_intermediate_size"):
            moe["shared_ffn_hidden_size"] = shared
        model["moe"] = moe
        if dense := a.number("dense_layers"):
            model["first_dense_layers"] = dense
        if a.flag("moe_pad_expert_input_to_capacity"):
            strategy.update(pad_to_capacity=True, capacity_factor=a.real("capacity", 1.0))
    a.read.update((*_MODEL_QUIET, "capacity", "moe_pad_expert_input_to_capacity", "dense_layers",
                   "topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"))
    a.settle()
    result = Imported("simumax", model=model, strategy=strategy)
    result.ignored = _rest(a)
    return result


def strategy_from(raw: Mapping[str, object], *, where: str) -> Imported:
    """Read a strategy."""
    a = Arguments(raw, where)
    tp, pp, cp = (a.number(f"{d}_size", 1) or 1 for d in ("tp", "pp", "cp"))
    gpus, mbs = a.number("world_size"), a.number("micro_batch_size", 1) or 1
    rounds = a.number("micro_batch_num", 1) or 1
    s: Data = {
        "gpus": gpus, "seq_len": a.number("seq_len"), "mbs": mbs, "tp": tp, "cp": cp, "pp": pp,
        "ep": a.number("ep_size", 1), "vpp": a.number("interleaving_size", 1),
        "sp": a.flag("enable_sequence_parallel") and tp > 1, "zero": a.number("zero_state", 1),
        "framework": "megatron", "attention": "flash", "overlap_grad_reduce": False,
        "overlap_param_gather": False}
    if gpus is None or gpus % (tp * pp * cp):
        a.fail("world_size", f"must be a multiple of tp x cp x pp ({tp * pp * cp})")
    else:
        s["gbs"] = mbs * rounds * gpus // (tp * pp * cp)
    if (a.number("ep_size", 1) or 1) > 1 or (a.number("etp_size", 1) or 1) > 1:
        s.update(etp=a.number("etp_size", 1), dispatcher="alltoall")
    if a.text("moe_dispatcher_policy", "all2all") not in ("all2all", "all2all-seq"):
        a.fail("moe_dispatcher_policy", "is not modelled", "use all2all")
    if a.flag("use_math_sdp") or not a.flag("use_flash_sdp", default=True):
        s["attention"] = "unfused"
    s["fused_norm"] = a.flag("use_fused_norm", default=True)
    dtype = a.text("dtype", "bf16")
    s["precision"] = "fp8-ds" if a.flag("fp8") else dtype
    s["grad_dtype"] = "fp32" if a.flag("use_fp32_accum_grad", default=True) else dtype
    if s["vpp"] != 1:
        s["overlap_p2p"] = a.flag("pp_comm_async", default=True)
    a.read.update(("pp_comm_async", "micro_batch_size", "micro_batch_num", *_STRATEGY_QUIET))
    for end in ("first", "last"):
        if count := a.number(f"num_layers_in_{end}_pipeline_stage"):
            s[f"{end}_stage_layers"] = count
    result = Imported("simumax")
    s.update(_recompute(a, result))
    if a.flag("enable_dropout"):
        result.ignored.append(Ignored("enable_dropout", "true", "dropout is not modelled"))
    nets = {key: raw[key] for key in _NETS if raw.get(key) not in (None, "auto")}
    a.read.update(_NETS)
    if nets:
        result.ignored.append(Ignored(
            ", ".join(nets), ", ".join(map(str, nets.values())),
            "which link a group uses follows from its ranks' places in the cluster"))
    a.settle()
    result.strategy = {key: value for key, value in s.items() if value is not None}
    result.ignored += _rest(a)
    return result


def _recompute(a: Arguments, result: Imported) -> Data:
    switches = ("attn_recompute", "mla_rms_recompute", "mlp_recompute", "mlp_rms_recompute",
                "sdp_recompute", "qkv_recompute", "attn_norm_recompute")
    on = {key for key in switches if a.flag(key)}
    kind, layers = a.text("recompute_granularity", "full_block"), a.number("recompute_layer_num")
    if not a.flag("enable_recompute") or not layers:
        return {"recompute": "none"}
    if kind in ("full_block", "full"):
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": layers}
    if kind == "sdp_only":
        on = {"sdp_recompute"}
    elif kind not in ("selective_recompute", "attn_only", "mlp_only"):
        a.fail("recompute_granularity", f"'{kind[:40]}' is not modelled",
               "use full_block, sdp_only or selective_recompute")
    modules = set()
    if on & {"attn_recompute", "sdp_recompute"} or kind == "attn_only":
        modules.add("core_attn")
    if "attn_recompute" in on or kind == "attn_only":
        result.ignored.append(Ignored("attn_recompute", "true", "also recomputes the projections "
                                      "of attention; taken as core_attn, Megatron's module"))
    if "mlp_recompute" in on or kind == "mlp_only":
        modules.add("mlp")
    if any("norm" in key or "rms" in key for key in on):
        modules.add("layernorm")
    order = ("core_attn", "mlp", "layernorm")
    result.ignored.append(Ignored("recompute_layer_num", str(layers), "Megatron's selective "
                                  "recomputation is of every layer"))
    return {"recompute": "+".join(m for m in order if m in modules) or "none"}


def _rest(a: Arguments) -> list[Ignored]:
    return [Ignored(key, str(value)[:80], "is not understood") for key, value in a.values.items()
            if key not in a.read and value not in (None, False, "", [], {})]


def system_from(raw: Mapping[str, object], *, where: str, name: str) -> Imported:
    """Read a system; efficiencies of single shapes and collectives of a few ranks stay behind."""
    chip = _mapping(raw, "accelerator")
    operators, memory = _mapping(chip, "op"), _mapping(chip, "bandwidth")
    a = Arguments({"tflops": _mapping(operators, "matmul").get("tflops"),
                   "mem_gbs": chip.get("mem_gbs"), "num_per_node": raw.get("num_per_node")}, where)
    nodes = a.number("num_per_node", 8) or 8
    gib_per_s = GIB / GB
    base = _mapping(memory, "default")

    def rate(op: str) -> float:
        return _real(_mapping(operators, op).get("efficient_factor")) or 0.5

    source = f"SimuMax system file, sys_name {str(raw.get('sys_name', name))[:60]}"
    dense = rate("matmul")
    system: Data = {
        "name": str(raw.get("sys_name") or name),
        "accelerator": {
            "provenance": "user", "source": source, "vendor": "nvidia",
            "architecture": _architecture(a.real("tflops") or 0.0),
            "peak_bf16_tflops": a.real("tflops"),
            "peak_fp8_tflops": _real(_mapping(operators, "fp8_matmul").get("tflops"))
            if _real(_mapping(operators, "fp8_matmul").get("efficient_factor")) else 0.0,
            "memory_gib": a.real("mem_gbs"),
            "memory_bandwidth_gb_per_s": _real(base.get("gbps")) * gib_per_s,
            "num_multiprocessors": 132},
        "efficiency": {
            "provenance": "user", "source": source, "gemm_bf16_frac": dense,
            "grouped_gemm_frac": min(1.0, rate("group_matmul") / dense),
            # Its attention counts the full square, the fractions here the causal half.
            "attention_forward_frac": rate("sdp_fwd") / 2,
            "attention_backward_frac": rate("sdp_bwd") / 2,
            "memory_frac": _real(base.get("efficient_factor")) or 0.8,
            "permute_frac": _real(_mapping(memory, "permute_fwd").get("efficient_factor")) or 0.5},
        "network": {"provenance": "user", "source": source, **_network(raw, nodes, gib_per_s)}}
    a.settle()
    result = Imported("simumax", system=system)
    result.ignored = [Ignored(f"accelerator.op.{op}.accurate_efficient_factor", "",
                              "rates of single shapes; the fraction of the operator is used")
                      for op, d in operators.items()
                      if isinstance(d, dict) and d.get("accurate_efficient_factor")]
    return result


def _network(raw: Mapping[str, object], nodes: int, gib_per_s: float) -> Data:
    nets = _mapping(raw, "networks")
    inside = next((_mapping(nets, n) for n in ("high_intra_node", "low_intra_node",
                                               "intra_node_pcie_8x") if n in nets), {})
    link = _mapping(inside, "bandwidth")
    wire = _mapping(_mapping(nets, "inter_node"), "bandwidth")

    def collective(op: str) -> float:
        own = _real(_mapping(_mapping(inside, "op"), op).get("efficient_factor"))
        return min(1.0, own or _real(link.get("efficient_factor")) or 0.7)

    return {
        "gpus_per_node": nodes, "domain_size": nodes,
        "scale_up_gb_per_s": _real(link.get("gbps")) * gib_per_s,
        "scale_up_all_reduce_frac": collective("all_reduce"),
        "scale_up_all_gather_frac": collective("all_gather"),
        "scale_up_all_to_all_frac": collective("all2all"),
        "scale_up_p2p_frac": collective("p2p"),
        # Its bandwidth between nodes is the node's, shared by the GPUs.
        "nic_gb_per_s": _real(wire.get("gbps")) * gib_per_s / nodes,
        "nics_per_node": nodes,
        "scale_out_frac": _real(wire.get("efficient_factor")) or 0.8,
        "scale_out_latency_us": _real(wire.get("latency_us"))}


def _architecture(tflops: float) -> str:
    return "ampere" if tflops < 500 else "hopper" if tflops < 1500 else "blackwell"


def _mapping(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _real(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
