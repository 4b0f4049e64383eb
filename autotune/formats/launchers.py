"""Files that would launch a run: plain torchrun, Slurm, Kubernetes. Nothing is ever launched.

Every value is quoted for where it stands, so that no name in a file becomes a command.

References
----------
PyTorch ``torch.distributed.run`` (options); Slurm ``sbatch(1)``; Kubeflow Training Operator
``kubeflow.org/v1`` PyTorchJob, which sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK by node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from autotune.formats.exported import Exported, bash_array, comment
from simcore.inputs.system import SystemSpec

LAUNCHERS = ("torchrun", "slurm", "kubernetes")
PORT = 29500
_ORDER = "torchrun numbers ranks node by node, so that tp stays inside a node"


def nodes_of(gpus: int, system: SystemSpec) -> tuple[int, int]:
    """Return nodes, and GPUs of each, that a run takes."""
    per_node = min(gpus, system.network.gpus_per_node)
    return -(-gpus // per_node), per_node


def add_launcher(out: Exported, kind: str, *, gpus: int, system: SystemSpec, name: str,
                 program: Sequence[str]) -> None:
    """Add the launcher's file; refuses numbers of GPUs that are not whole nodes."""
    nodes, per_node = nodes_of(gpus, system)
    if nodes * per_node != gpus:
        out.refuse("gpus", f"must be whole nodes of {per_node} for a launcher, got {gpus}",
                   f"use {(nodes - 1) * per_node} or {nodes * per_node}")
        return
    env = {**{k: v for k, (v, _) in out.env.items()}, **network_env(system, nodes)}
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    if kind == "torchrun":
        out.files["launch.sh"] = _torchrun(out, env, nodes, per_node, program)
    elif kind == "slurm":
        out.files["job.sbatch"] = _slurm(out, env, nodes, per_node, program, label)
    else:
        out.files["pytorchjob.yaml"] = _kubernetes(out, env, nodes, per_node, program, label)
    out.notes.append(_ORDER)


def network_env(system: SystemSpec, nodes: int) -> dict[str, str]:
    """Variables of NCCL that follow from the system's network."""
    env: dict[str, str] = {}
    if nodes > 1 and system.network.rail_optimised:
        # Traffic between rails would cross the spine (NCCL 2.29 documentation).
        env["NCCL_CROSS_NIC"] = "0"
    if system.network.scale_up_all_reduce_offload:
        env["NCCL_NVLS_ENABLE"] = "1"
    return env


def _exports(env: Mapping[str, str]) -> str:
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items())


def _head(out: Exported) -> str:
    return ("set -euo pipefail\n"
            f"# {comment(f'{out.target}; arguments of a program go behind this script')}\n")


def _torchrun(out: Exported, env: Mapping[str, str], nodes: int, per_node: int,
              program: Sequence[str]) -> str:
    several = nodes > 1
    where = ('--rdzv-backend c10d --rdzv-id "${RUN_ID:-autotune}" '
             f'--rdzv-endpoint "${{MASTER_ADDR:?first node}}:${{MASTER_PORT:-{PORT}}}" '
             '--node-rank "${NODE_RANK:?number of this node, from 0}"' if several
             else "--standalone")
    return ("#!/usr/bin/env bash\n"
            + (f"# On each of {nodes} nodes, with MASTER_ADDR and NODE_RANK set.\n"
               if several else "")
            + _head(out) + _exports(env) + bash_array("ARGS", out.lines)
            + f"torchrun --nnodes {nodes} --nproc-per-node {per_node} {where} \\\n"
            + f"  {shlex.join(program)} \"${{ARGS[@]}}\" \"$@\"\n")


def _slurm(out: Exported, env: Mapping[str, str], nodes: int, per_node: int,
           program: Sequence[str], label: str) -> str:
    return ("#!/usr/bin/env bash\n"
            f"#SBATCH --job-name={label}\n#SBATCH --nodes={nodes}\n"
            f"#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node={per_node}\n"
            "#SBATCH --exclusive\n#SBATCH --distribution=block\n"
            + _head(out) + _exports(env)
            + 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
            + f"export MASTER_ADDR MASTER_PORT=${{MASTER_PORT:-{PORT}}}\n"
            + bash_array("ARGS", out.lines)
            # Each node's number is known inside the task alone.
            + "# shellcheck disable=SC2016\n"
            + f"srun bash -c 'exec torchrun --nnodes {nodes} --nproc-per-node {per_node} "
            + '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" '
            + "--master-port \"$MASTER_PORT\" \"$@\"' torchrun \\\n"
            + f"  {shlex.join(program)} \"${{ARGS[@]}}\" \"$@\"\n")


def _kubernetes(out: Exported, env: Mapping[str, str], nodes: int, per_node: int,
                program: Sequence[str], label: str) -> str:
    import yaml

    # `$(NAME)` in a command is replaced by Kubernetes; `$$` stands for itself.
    words = [word.replace("$(", "$$(") for word in (*program, *out.args)]
    container = {
        "name": "pytorch", "image": "IMAGE",
        "command": ["torchrun", f"--nproc-per-node={per_node}", f"--nnodes={nodes}",
                    "--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)",
                    "--master-port=$(MASTER_PORT)"],
        "args": words,
        "env": [{"name": key, "value": value.replace("$(", "$$(")}
                for key, value in env.items()],
        "resources": {"limits": {"nvidia.com/gpu": per_node}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    spec = {"restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
    replicas = {"Master": 1, "Worker": nodes - 1}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": label},
           "spec": {"pytorchReplicaSpecs": {
               role: {"replicas": count, "restartPolicy": "Never", "template": {"spec": {
                   **spec, "restartPolicy": "Never"}}}
               for role, count in replicas.items() if count}}}
    for role in job["spec"]["pytorchReplicaSpecs"].values():  # type: ignore[index]
        role["template"]["spec"].pop("restartPolicy")
    out.notes.append("set the container's image in pytorchjob.yaml in place of IMAGE")
    why = "".join(f"# {comment(' '.join(line.words))}: {comment(line.why)}\n"
                  for line in out.lines)
    return why + yaml.dump(job, Dumper=_no_alias(), sort_keys=False)


def _no_alias() -> type:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes what is used twice twice."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    return Plain
