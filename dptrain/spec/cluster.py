"""A cluster profile: how one site wants jobs to be asked for. Built-in ones live in `templates/clusters/`, users' own in
`~/.config/dptrain/clusters/NAME.yaml` (a user's own of the same name wins)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from dptrain.spec.constraints import HEADER_WORD, INTERFACE, FilePath, Length, Limits

HeaderWord = Annotated[str, HEADER_WORD]
Lines = Annotated[tuple[str, ...], Length(at_least=0, bare=True, says="a list of lines")]
PositiveFloat = Annotated[float, Limits(above=0)]

_EXTRA_KEYS = """
    bb begin contiguous core-spec cores-per-socket deadline dependency distribution exclude exclusive gpu-bind gpu-freq hint
    licenses mail-type mail-user mem-bind mincpus network nice nodelist oversubscribe prefer priority reservation
    sockets-per-node spread-job switches thread-spec threads-per-core tmp use-min-nodes wckey
"""
EXTRA_SBATCH_KEYS: tuple[str, ...] = tuple(_EXTRA_KEYS.split())
"""What `extra_sbatch` may add to the header; everything else there is written from the profile's and spec's own keys."""

FLAG_KEYS: tuple[str, ...] = ("contiguous", "exclusive", "nice", "oversubscribe", "spread-job", "use-min-nodes")
"""Those that sbatch also takes without a value: written `true`, held as an empty text, printed as `--exclusive`."""


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """One site. Every line of the sbatch header comes from here or from the spec's `resources` and `run`."""

    name: str
    """The file's name without `.yaml`."""
    launcher: Literal["local", "slurm"] = "slurm"
    """`local`: processes on this machine. `slurm`: sbatch."""
    partition: HeaderWord | None = None
    account: HeaderWord | None = None
    qos: HeaderWord | None = None
    constraint: HeaderWord | None = None
    gpus_per_node: Annotated[int, Limits(at_least=1)] = 4
    """Ranks per node, at least 1: one rank per GPU."""
    gpu_request: Literal["gres", "gpus-per-node", "none"] = "gres"
    """`--gres=gpu:N`, `--gpus-per-node=N`, or no line at all (CPU nodes, or sites that count whole nodes)."""
    mem_per_cpu_gib: PositiveFloat | None = None
    """`--mem-per-cpu`; not together with `mem_per_node_gib`. Neither: no memory line."""
    mem_per_node_gib: Annotated[float, Limits(at_least=0)] | None = None
    """`--mem`; 0 asks for all of the node."""
    cpus_per_task: Annotated[int, Limits(at_least=1)] = 1
    """CPUs per rank; also the number of threads of a rank unless OMP_NUM_THREADS is set by `env`."""
    restart: Literal["requeue", "resubmit"] = "requeue"
    """How a run that was warned of its end and has saved goes on. `requeue`: the same job goes back into the queue. `resubmit`, for
    sites that forbid that: rank 0 submits a job that begins when this one has ended; sbatch must work on compute nodes."""
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of one card in GiB; unknown: plan cannot say whether it fits."""
    setup: Lines = ()
    """Shell lines run before the ranks start (module load, conda activate); a failing one ends the job."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables exported before the ranks start."""
    command_prefix: Lines = ()
    """Words put before the rank's command, e.g. `[apptainer, exec, image.sif]`."""
    python: str | None = None
    """Python on the compute nodes; default: the one that runs dptrain."""
    extra_sbatch: Mapping[str, str] = field(default_factory=dict)
    """Further lines of the sbatch header: `{reservation: NAME}`; true for a flag without a value."""
    gpu_tflops: PositiveFloat | None = None
    """What one card sustains on convolutions, in 1e12 operations per second; for plan's estimate of the share of communication."""
    intra_node_gb_s: PositiveFloat | None = None
    """Bandwidth between ranks of one node in GB/s (1e9 bytes); for plan."""
    inter_node_gb_s: PositiveFloat | None = None
    """Bandwidth between nodes in GB/s; for plan."""
    runs: Annotated[str, FilePath()] | None = None
    """Folder for run directories that compute nodes can write, where it is not `DPTRAIN_RUNS` or `./runs`."""
    interface: Annotated[str, INTERFACE] | None = None
    """Network interface the ranks talk over (GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME), one concrete name."""
