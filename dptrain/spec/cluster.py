"""A cluster profile: how one site wants jobs to be asked for. Built-in ones live in `templates/clusters/`, users' own in
`~/.config/dptrain/clusters/NAME.yaml` (a user's own of the same name wins)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """One site. Every line of the sbatch header comes from here or from the spec's `resources` and `run`."""

    name: str
    """The file's name without `.yaml`."""
    launcher: Literal["local", "slurm"] = "slurm"
    """`local`: processes on this machine. `slurm`: sbatch."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus_per_node: int = 4
    """Ranks per node, at least 1: one rank per GPU."""
    gpu_request: Literal["gres", "gpus-per-node", "none"] = "gres"
    """`--gres=gpu:N`, `--gpus-per-node=N`, or no line at all (CPU nodes, or sites that count whole nodes)."""
    mem_per_cpu_gib: float | None = None
    """`--mem-per-cpu`; not together with `mem_per_node_gib`. Neither: no memory line."""
    mem_per_node_gib: float | None = None
    """`--mem`; 0 asks for all of the node."""
    cpus_per_task: int = 1
    """CPUs per rank; also the number of threads of a rank unless OMP_NUM_THREADS is set by `env`."""
    gpu_memory_gib: float | None = None
    """Memory of one card in GiB; unknown: plan cannot say whether it fits."""
    setup: tuple[str, ...] = ()
    """Shell lines run before the ranks start (module load, conda activate); a failing one ends the job."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables exported before the ranks start."""
    command_prefix: tuple[str, ...] = ()
    """Words put before the rank's command, e.g. `[apptainer, exec, image.sif]`."""
    python: str | None = None
    """Python on the compute nodes; default: the one that runs dptrain."""
    extra_sbatch: Mapping[str, str] = field(default_factory=dict)
    """Further header lines; keys from a list (`scheduler/sbatch.py`)."""
    intra_node_gb_s: float | None = None
    """Bandwidth between ranks of one node in GB/s (1e9 bytes); for plan."""
    inter_node_gb_s: float | None = None
    """Bandwidth between nodes in GB/s; for plan."""
    runs: str | None = None
    """Folder for run directories that compute nodes can write, where it is not `DPTRAIN_RUNS` or `./runs`."""
    interface: str | None = None
    """Network interface the ranks talk over (GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME), one concrete name."""
