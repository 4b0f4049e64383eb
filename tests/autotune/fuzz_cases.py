"""Generated inputs of the command line: a fifth legal, the others wrong in one known way or many.

A case is a list of arguments and the files that it names. Its own number is its seed, so a
failure names the case that shows it again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from simcore.inputs.fields import FIELD, FIELDS, Field, Kind
from simcore.inputs.load import DATA, load_model, load_system

MODELS = ("llama3-8b", "llama70b", "gpt2-xl", "mpt-7b", "qwen3-4b", "gemma-2b", "mixtral-8x7b",
          "deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b", "moonlight-16b-a3b", "phi3-mini")
SYSTEMS = ("h100-sxm", "a100-sxm-80g", "b200-sxm", "gb200-nvl72", "mi300x", "h20-sxm",
           "a100-pcie-80g", "mtt-s5000")
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
          "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
          "intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 4096,
          "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5}
ODD = ("", " ", "abc", "-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "9" * 30, "0x10", "1_000",
       "true", "None", "null", "[]", "{}", "1,,2", "\u0663", "\u00b2", "\x1b[31mred", "a\nb",
       "\ud800", "x" * 5000, "%s%n", "../../etc/passwd", "'; --", "\u202etxt", "--tp")
TEXTS: tuple[str, ...] = (
    "", "\n", "[]", "null", "42", "- 1\n- 2\n", "a: [1\n", "a: 'x\n", "\ttp: 2\n",
    "%YAML 9\n--- a", "tp: 2\ntp: 4\n", "a: &a [*a]\n", "a: &a {b: *a}\n",
    "!!python/object/apply:os.getcwd []",
    "gpus: !!binary aGk=\n", "? [1, 2]\n: 3\n", "\x00", "\ufeffgpus: 8\n",
    "---\na: 1\n---\nb: 2\n",
    "a: " + "[" * 3000, "{" * 3000, "<<: 5\n", "gpus: 2024-13-45\n", "gpus: 0o17\n", "1: 2\n",
    "a: &a [x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c]\ne: [*d,*d,*d]\n",
    "gpus: 1e99\n", "gpus: .inf\n", "strategy: 5\n", "model: [llama3-8b]\ngpus: 8\n",
    '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "gpus: 8\nmodel: \x1b[2J\n")


@dataclass
class Case:
    """One call of the command line.

    Parameters
    ----------
    argv : list of str
        ``{dir}`` stands for the folder of the case's files.
    files : mapping of str to bytes
    legal : bool or None
        Whether exit 2 is wrong (True) or the only right answer (False); None: either.
    names : tuple of str
        One of them stands in the message of a case that is wrong.
    options : mapping of str to str
        The strategy as options, where `argv` is made of nothing else.
    fixable : bool
        Whether a message that names legal values is tried.
    """

    argv: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    legal: bool | None = None
    names: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    fixable: bool = False
    good: str = ""

    def written(self, folder: Path) -> list[str]:
        """Write the files; return the arguments."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return [a.replace("{dir}", str(folder)) for a in self.argv]


def arguments(command: str, options: Mapping[str, str]) -> list[str]:
    """Return a command line."""
    return [command, *(part for k, v in options.items()
                       for part in ("--" + k.replace("_", "-"), v))]


def _pick_degree(rng: random.Random, *numbers: int) -> int:
    return rng.choice([d for d in (1, 2, 4, 8) if all(n % d == 0 for n in numbers)])


def legal_options(rng: random.Random) -> dict[str, str]:
    """Draw a strategy that is legal by construction, without asking a rule."""
    name, system = rng.choice(MODELS), rng.choice(SYSTEMS)
    model = load_model(name)
    tp = _pick_degree(rng, model.num_attention_heads, model.num_query_groups,
                      model.ffn_hidden_size)
    pp = _pick_degree(rng, model.num_layers)
    dp = rng.choice((1, 2, 3, 4, 8))
    mbs, rounds = rng.choice((1, 2, 4)), rng.choice((8, 16, 24))
    options = {"model": name, "system": system, "gpus": str(tp * pp * dp), "tp": str(tp),
               "pp": str(pp), "mbs": str(mbs), "gbs": str(dp * mbs * rounds),
               "seq_len": str(rng.choice((512, 1024, 2048, 4096))), "vpp": "1"}
    extra: dict[str, Callable[[], str]] = {
        "sp": lambda: str(tp > 1).lower(), "zero": lambda: rng.choice(("0", "1")),
        "recompute": lambda: rng.choice(("none", "full", "core_attn", "core_attn+layernorm")),
        "grad_dtype": lambda: rng.choice(("fp32", "bf16")), "schedule": lambda: "1f1b",
        "cross_entropy": lambda: rng.choice(("fused", "unfused")),
        "fused_norm": lambda: rng.choice(("true", "false")), "precision": lambda: "bf16",
        "attention": lambda: "flash", "rank_order": lambda: "tp-cp-dp-pp",
        "framework": lambda: "megatron", "optimizer": lambda: "adam"}
    for key in rng.sample(sorted(extra), rng.randint(0, 5)):
        options[key] = extra[key]()
    if model.is_moe:
        options["etp"] = "1"
        if tp > 1:
            options["sp"] = "true"
    return options


def _legal(rng: random.Random) -> Case:
    options = legal_options(rng)
    command = rng.choice(("predict", "check", "predict", "search"))
    kind = rng.randrange(4)
    if command == "search":
        options |= {"tp": rng.choice((options["tp"], "auto")), "recompute": "none,full"}
    elif kind == 1:
        body = {k: yaml.safe_load(v) for k, v in options.items()}
        nested = {"strategy": {k: body.pop(k) for k in list(body) if k in FIELD}} | body
        text = json.dumps(nested) if rng.random() < 0.3 else yaml.safe_dump(nested)
        suffix = "json" if text.startswith("{") else "yaml"
        return Case([command, "--strategy", f"{{dir}}/s.{suffix}"],
                    {f"s.{suffix}": text.encode()}, legal=True)
    elif kind == 2:
        own = {"model": "{dir}/config.json", "gpus": "8", "tp": "2", "gbs": "16"}
        return Case(arguments(command, own), {"config.json": json.dumps(CONFIG).encode()},
                    legal=True)
    style = rng.choice(("table", "json", "csv", "yaml"))
    return Case([*arguments(command, options), "--format", style], legal=True)


def _wrong_value(rng: random.Random, spec: Field) -> str:
    """Draw a value that the field's own range or list refuses."""
    if spec.not_modelled and rng.random() < 0.3:
        return rng.choice(sorted(spec.not_modelled))
    if spec.kind in (Kind.INT, Kind.FLOAT):
        return rng.choice(("abc", "nan", "inf", "1e400", "-1", "[]", "9" * 30, "x" * 300,
                           str(spec.maximum + 1), "\x1b[31m1"))
    if spec.kind is Kind.BOOL:
        return rng.choice(("maybe", "2", "-1", "tru", "\u0661"))
    if spec.kind is Kind.TEXT:
        return rng.choice(("\x1b[31m", "a\nb", "\u00e9", "$(x)", "!"))
    return rng.choice(("xx", spec.choices[0] + "x", "-1", spec.choices[-1][:-1] + "!"))


def _one_wrong_value(rng: random.Random) -> Case:
    options = legal_options(rng)
    spec = rng.choice(FIELDS)
    good = options.get(spec.name, "")
    options[spec.name] = _wrong_value(rng, spec)
    return Case(arguments(rng.choice(("predict", "check")), options), legal=False,
                names=(spec.name,), options=options, fixable=True, good=good)


def _one_odd_field(rng: random.Random) -> Case:
    """A field that other fields may not go with: legal or not, a rule decides."""
    options = legal_options(rng)
    spec = rng.choice(FIELDS)
    if spec.kind in (Kind.INT, Kind.FLOAT):
        value = str(rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 100, 4096)))
    elif spec.kind is Kind.BOOL:
        value = rng.choice(("true", "false"))
    elif spec.kind is Kind.TEXT:
        value = rng.choice(("auto", "none", "4|4", "Et*2|(t*2|)*3tL", "1", "0.15", "25.11", "|"))
    elif spec.kind is Kind.MODULES:
        value = "+".join(rng.sample(spec.choices, rng.randint(1, 3)))
    else:
        value = rng.choice([c for c in spec.choices if c not in spec.not_modelled])
    good = options.get(spec.name, "")
    options[spec.name] = value
    return Case(arguments(rng.choice(("predict", "check", "check")), options),
                names=tuple(FIELD), options=options, fixable=True, good=good)


def _many_odd_fields(rng: random.Random) -> Case:
    options = legal_options(rng)
    for spec in rng.sample(FIELDS, rng.randint(2, 10)):
        options[spec.name] = rng.choice(
            (*ODD[:20], "1", "2", "4", "true", *(spec.choices or ("8",))))
    return Case(arguments(rng.choice(("predict", "check")), options), names=tuple(FIELD))


def _odd_command_line(rng: random.Random) -> Case:
    words = ["search", "predict", "check", "validate", "models", "systems", "--model", "--gpus",
             "8", "llama3-8b", "--tp", "--format", "json", "--strategy", "--", "-h", "--help",
             "--version", "--debug", "-x", "--out", "h100", *ODD]
    argv = [rng.choice(words) for _ in range(rng.randint(1, 6))]
    # A search without a bound on its space is legal, and long.
    return Case([a for a in argv if a not in ("search", "validate")] or ["serch"])


def _bad_name(rng: random.Random) -> Case:
    options = legal_options(rng)
    key = rng.choice(("model", "system", "format", "strategy"))
    options[key] = rng.choice([o for o in ODD if o.strip()] + ["/", "/nowhere.yaml", "{dir}"])
    return Case(arguments("predict", options), legal=False,
                names=(key, options[key][:40], "{dir}"))


def _bad_strategy_file(rng: random.Random) -> Case:
    command = rng.choice(("predict", "check"))
    kind = rng.randrange(4)
    body = {k: yaml.safe_load(v) for k, v in legal_options(rng).items()}
    if kind == 0:
        return Case([command, "--strategy", "{dir}/s.yaml"],
                    {"s.yaml": rng.choice(TEXTS).encode("utf-8", "replace")},
                    names=("s.yaml", "--model"))
    if kind == 1:
        junk = bytes(rng.randrange(256) for _ in range(rng.randint(1, 300)))
        return Case([command, "--strategy", "{dir}/s.yaml"], {"s.yaml": junk}, legal=False,
                    names=("s.yaml", "--model", "model", "gpus"))
    spec = rng.choice(FIELDS)
    if kind == 2:
        wrong = rng.choice(([1], {"a": 1}, "\x07", None if spec.kind is Kind.TEXT else "abc"))
        body[spec.name] = wrong
        legal = None if wrong is None or spec.kind is Kind.TEXT else False
        return Case([command, "--strategy", "{dir}/s.json"],
                    {"s.json": json.dumps(body).encode()}, legal=legal, names=("s.json",))
    body[rng.choice(("tpp", "dp", "num_microbatches", "", "x" * 400, "pr\u00e9cision"))] = 1
    return Case([command, "--strategy", "{dir}/s.json"], {"s.json": json.dumps(body).encode()},
                legal=False, names=("s.json",))


def _mutated(rng: random.Random, data: object) -> object:
    """Change one leaf or drop one key somewhere in nested data."""
    if isinstance(data, dict) and data:
        out = dict(data)
        key = rng.choice(sorted(out))
        if rng.random() < 0.2:
            del out[key]
        elif rng.random() < 0.1:
            out[key + "x"] = 1
        else:
            out[key] = _mutated(rng, out[key])
        return out
    return rng.choice((None, -1, 0, 1, 3, 1e300, -1e-300, "abc", "", [], {}, True, [1, 2],
                       2**63, 0.5, "4e2", "\x1b[0m", float("nan"), float("inf"), 10**40))


def _bad_data_file(rng: random.Random) -> Case:
    options = legal_options(rng)
    kind = rng.choice(("config", "model", "system"))
    if kind == "config":
        data: object = CONFIG
        options = {"model": "{dir}/config.json", "gpus": "8", "tp": "2", "gbs": "16"}
        name = "config.json"
    else:
        source = (load_model if kind == "model" else load_system)(options[kind]).name
        data = yaml.safe_load((DATA / f"{kind}s" / f"{source}.yaml").read_text("utf-8"))
        name = f"{kind}.json"
        options[kind] = "{dir}/" + name
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data = _mutated(rng, data)
    text = json.dumps(data)
    return Case(arguments(rng.choice(("predict", "check")), options), {name: text.encode()},
                names=(name, *FIELD))


def _bad_space(rng: random.Random) -> Case:
    axes = {"tp": [1, 2], "pp": 1, "recompute": ["none", "full"], "vpp": 1}
    body = _mutated(rng, {"name": "s", "axes": {**axes, rng.choice(FIELDS).name: rng.choice(
        ([], [1, "x"], {"a": 1}, "auto", -1, None, [[1]], "a,b", "2"))}})
    text = rng.choice(TEXTS) if rng.random() < 0.3 else json.dumps(body)
    argv = ["search", "--model", "gpt2", "--gpus", "2", "--gbs", "8", "--space", "{dir}/s.yaml"]
    return Case(argv, {"s.yaml": text.encode("utf-8", "replace")}, names=("s.yaml", *FIELD))


def _bad_search_option(rng: random.Random) -> Case:
    name = rng.choice(("objective", "sampler", "trials", "seed", "jobs", "top", "tokens",
                       "memory-limit-gib", "memory-utilisation", "memory-reserve-gib",
                       "price-per-gpu-hour"))
    value = rng.choice([o for o in ODD if o not in ("true", "1_000", "\u0663", "\u00b2")])
    argv = ["search", "--model", "gpt2", "--gpus", "2", "--gbs", "8", "--tp", "1,2", "--pp", "1",
            "--recompute", "none,full", "--" + name, value]
    return Case(argv, names=(name, name.replace("-", "_"), "--"))


def _bad_table(rng: random.Random) -> Case:
    header = "id,model,system,gpus,framework,precision,seq_len,gbs,mbs,tp,pp,zero,step_time_s"
    row = ["a", "llama3-8b", "h100-sxm", "8", "megatron", "bf16", "4096", "16", "1", "2", "1",
           "1", "9.5"]
    for _ in range(rng.randint(0, 3)):
        row[rng.randrange(len(row))] = rng.choice(ODD).replace("\n", " ").replace(",", ";")
    text = rng.choice((f"{header}\n{','.join(row)}\n", f"# x\n{header}\n{','.join(row)},7,8\n",
                       header + "\n", header.replace("gbs", "tp") + "\n" + ",".join(row), "",
                       f"{header}\n\"{','.join(row)}\n", "\x00\n", rng.choice(TEXTS)))
    return Case(["validate", "{dir}/r.csv"], {"r.csv": text.encode("utf-8", "replace")},
                names=("r.csv", "runs"))


_MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    _legal, _legal, _legal, _one_wrong_value, _one_wrong_value, _one_odd_field, _one_odd_field,
    _many_odd_fields, _odd_command_line, _bad_name, _bad_strategy_file, _bad_data_file,
    _bad_space, _bad_search_option, _bad_table)


def make_case(number: int) -> Case:
    """Build case `number`: every fifth is legal."""
    return _MAKERS[number % len(_MAKERS)](random.Random(number))
