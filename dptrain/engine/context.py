"""Who am I: environment -> rank, device, process group. The only reader of `SLURM_*`, `RANK` and their relatives on a rank.

Ranks meet through a TCP store whose port the operating system picks on rank 0, so no port is ever guessed; its address is
written to the attempt's rendezvous file, together with job id and attempt, so that a leftover of another attempt is not taken.
"""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from deepinv.distributed import DistributedContext

from dptrain.engine import observe
from dptrain.engine.communication import all_reduce, meet
from dptrain.engine.mesh import Mesh, form_mesh
from dptrain.errors import UsageError
from dptrain.records.intent import write_json
from dptrain.records.paths import AttemptPaths

_set_timeout: Callable[..., None] = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
"""By the name it has since torch 2.14, or the one before."""


class WorldMismatch(RuntimeError):
    """The job has another number of ranks than was planned."""


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """What the launcher told this process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    job_id: str
    attempt: int
    launcher: str

    @classmethod
    def read(cls) -> RankEnvironment:
        """From torch's launcher (`RANK`), from srun (`SLURM_PROCID`), or a single process.

        torch's launcher is looked at first: it may itself run inside an allocation.
        """
        env = os.environ
        if "RANK" in env and "WORLD_SIZE" in env:
            return cls(
                rank=int(env["RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                local_rank=int(env.get("LOCAL_RANK", "0")),
                local_world_size=int(env.get("LOCAL_WORLD_SIZE", env["WORLD_SIZE"])),
                job_id=env.get("DPTRAIN_JOB_ID", str(os.getppid())),
                attempt=int(env.get("DPTRAIN_ATTEMPT", "1")),
                launcher="local",
            )
        if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
            array = env.get("SLURM_ARRAY_JOB_ID")
            return cls(
                rank=int(env["SLURM_PROCID"]),
                world_size=int(env["SLURM_NTASKS"]),
                local_rank=int(env["SLURM_LOCALID"]),
                local_world_size=int(env["SLURM_NTASKS"]) // max(1, int(env.get("SLURM_NNODES", "1"))),
                job_id=f"{array}_{env['SLURM_ARRAY_TASK_ID']}" if array else env["SLURM_JOB_ID"],
                attempt=int(env.get("SLURM_RESTART_COUNT", "0")) + int(env.get("DPTRAIN_FIRST_ATTEMPT", "1")),
                launcher="slurm",
            )
        return cls(
            rank=0, world_size=1, local_rank=0, local_world_size=1, job_id=str(os.getpid()), attempt=1, launcher="none"
        )

    def export(self) -> None:
        """Set the variables deepinv and torch read, from what was found."""
        os.environ["RANK"] = str(self.rank)
        os.environ["WORLD_SIZE"] = str(self.world_size)
        os.environ["LOCAL_RANK"] = str(self.local_rank)
        os.environ["LOCAL_WORLD_SIZE"] = str(self.local_world_size)
        if self.local_world_size == self.world_size:
            # All ranks on one host: its name need not resolve, and must not leave the host.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    @property
    def host(self) -> str:
        """The node's name as the scheduler knows it, else the host's."""
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


class RankContext(DistributedContext):  # type: ignore[misc]
    """deepinv's context that also counts what this rank sends, and leaves without a collective after an error."""

    mesh: Mesh
    """Once entered: which image and which part of it are this rank's."""

    def __init__(
        self,
        env: RankEnvironment,
        seed: int,
        on_communication: Callable[[], None] | None = None,
        *,
        replicas: int = 1,
        timeout_s: int | None = None,
    ) -> None:
        """
        :param replicas: divides the number of ranks.
        :param timeout_s: limit for any one collective within a replica; None: torch's.
        """
        super().__init__(seed=seed, seed_offset=False, cleanup=False)
        self.env = env
        self.bytes_sent = 0
        self._counting = True
        self._on_communication = on_communication
        self._replicas, self._timeout = replicas, None if timeout_s is None else timedelta(seconds=timeout_s)

    def __enter__(self) -> RankContext:
        super().__enter__()
        self.mesh = form_mesh(self.rank, self.world_size, self._replicas, self.device, self._timeout)
        return self

    def limit_collectives(self, timeout_s: float) -> None:
        """From now on any one collective may take so long: set-up and steps have limits of their own."""
        if self.use_dist:
            for group in {None, self.mesh.spatial_group}:
                _set_timeout(timedelta(seconds=timeout_s), group)

    def local_indices(self, num_items: int) -> list[int]:
        """Items of this rank, dealt round robin as deepinv does; plan has already said which ranks have none."""
        return list(range(self.rank, num_items, self.world_size))

    def sent(self, bytes_sent: int) -> None:
        """Count what this rank sent by other ways than the collectives of this class."""
        if self._counting:
            self.bytes_sent += bytes_sent
            observe.sent(bytes_sent)
        if self._on_communication is not None:
            self._on_communication()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Inside, bytes are not counted: what is sent to make data is not part of a step."""
        self._counting, before = False, self._counting
        try:
            yield
        finally:
            self._counting = before

    def summed(self, x: torch.Tensor, *, within_replica: bool = False) -> torch.Tensor:
        """A copy of x, summed over all ranks or those of this replica; without a graph."""
        total = x.detach().clone()
        ranks = self.mesh.spatial_size if within_replica else self.world_size
        if self.use_dist and ranks > 1:
            self._count(dist.all_reduce, total, ranks)
            all_reduce(total, group=self.mesh.spatial_group if within_replica else None)
        return total

    def _collective(self, fn: Any, fn_functional: Any, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if not self.use_dist:
            return super()._collective(fn, fn_functional, x, **kwargs)  # type: ignore[no-any-return]
        self._count(fn, x)
        with warnings.catch_warnings():
            # deepinv 0.5 calls torch's older functional collectives.
            warnings.filterwarnings("ignore", message=".*is deprecated", category=FutureWarning)
            with observe.communicating(fn.__name__, kwargs.get("group")):
                out: torch.Tensor = super()._collective(fn, fn_functional, x, **kwargs)
        if out.requires_grad:
            # The backward pass of a differentiable all_reduce is another one, which does not come by here.
            out.register_hook(lambda gradient: self._count(fn, gradient))  # type: ignore[no-untyped-call]
            if observe.anyone():
                _observe_backward(out, fn.__name__, kwargs.get("group"))
        return out

    def all_gather(self, x: torch.Tensor, group: Any = None) -> torch.Tensor:
        """As deepinv's, shown to observers."""
        with observe.communicating("all_gather", group):
            gathered: torch.Tensor = super().all_gather(x, group)
        return gathered

    def all_gather_object(self, obj_list: list[Any], obj: Any, group: Any = None) -> None:
        """As deepinv's, shown to observers."""
        with observe.communicating("gather_objects", group):
            super().all_gather_object(obj_list, obj, group)

    def broadcast_object_list(self, object_list: list[Any], src: int = 0, device: Any = None) -> Any:
        """As deepinv's, shown to observers."""
        with observe.communicating("broadcast_object"):
            return super().broadcast_object_list(object_list, src, device)

    def _count(self, fn: Any, x: torch.Tensor, ranks: int | None = None) -> None:
        # As a ring sends it: an all_reduce passes each rank's share on twice, a broadcast or gather once.
        passes = 2 if fn is dist.all_reduce else 1
        ranks = ranks or self.world_size
        self.sent(passes * (ranks - 1) * x.numel() * x.element_size() // ranks)


def _observe_backward(out: torch.Tensor, name: str, group: dist.ProcessGroup | None) -> None:
    """Show the collective that is the backward pass of another one, from its node's beginning to its end."""
    node = out.grad_fn
    assert node is not None
    calls: list[observe.Range] = []

    def begin(*gradients: Any) -> None:
        calls.append(observe.communicating(name, group))
        calls[-1].__enter__()

    def end(*gradients: Any) -> None:
        calls.pop().__exit__(None, None, None)

    node.register_prehook(begin)
    node.register_hook(end)


def nccl_environment(attempt: AttemptPaths, longest_s: int) -> dict[str, str]:
    """What torch's NCCL backend is told; a variable that is set already keeps its value.

    The flight recorder keeps the newest collectives and, where one times out, writes them to `nccl-<rank>` of the attempt.

    :param longest_s: limit for any one collective, of the phase with the longest.
    """
    return {
        # Ends the process where a collective fails or times out, without a teardown that could wait itself.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        # The same where the thread that watches the collectives is itself stuck in the driver.
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(longest_s),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(attempt.nccl_trace),
    }


def check_interface(host: str) -> None:
    """:raises UsageError: where gloo is told to use a network interface that this host does not have: gloo's own words name no setting."""
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "")
    known = [name for _, name in socket.if_nameindex()]
    missing = [name for name in wanted.split(",") if name and name not in known]
    if missing:
        raise UsageError(
            f"{host} has no network interface {', '.join(missing)} (GLOO_SOCKET_IFNAME), it has: {', '.join(known)}\n"
            "    write: `interface` in the cluster profile, one name that all nodes have"
        )


def connect(
    env: RankEnvironment, planned_world_size: int, attempt: AttemptPaths, timeout_s: int, longest_s: int
) -> None:
    """Compare the world sizes, meet the other ranks and start the process group.

    :param planned_world_size: what plan asked for.
    :param attempt: where the rendezvous file lies.
    :param timeout_s: limit for meeting, and for any one collective of the set-up.
    :param longest_s: limit for any one collective, of the phase with the longest.
    :raises WorldMismatch: where the job has another number of ranks; before any work and without waiting for anyone.
    :raises UsageError: where it is told to use a network interface that is not there.
    """
    if env.world_size != planned_world_size:
        raise WorldMismatch(
            f"planned {planned_world_size} ranks, but this process is rank {env.rank} of {env.world_size}: "
            f"the launcher started another number of ranks, or a set-up line removed their identity"
        )
    backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() > 0 else "gloo"
    if backend == "gloo":
        check_interface(env.host)
    else:
        for name, value in nccl_environment(attempt, longest_s).items():
            os.environ.setdefault(name, value)
    store = _meet(env, attempt, timedelta(seconds=timeout_s))
    dist.init_process_group(
        backend, store=store, rank=env.rank, world_size=env.world_size, timeout=timedelta(seconds=timeout_s)
    )


def disconnect() -> None:
    """Leave the process group after a run that ended well, all ranks together."""
    if dist.is_initialized():
        meet()
        dist.destroy_process_group()


def _meet(env: RankEnvironment, attempt: AttemptPaths, timeout: timedelta) -> dist.Store:
    if env.rank == 0:
        store = dist.TCPStore(
            "127.0.0.1" if env.local_world_size == env.world_size else socket.gethostname(),
            0,
            env.world_size,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
        )
        address = {"job_id": env.job_id, "attempt": env.attempt, "host": store.host, "port": store.port}
        write_json(attempt.rendezvous, address)
        return store
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            address = json.loads(attempt.rendezvous.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            address = {}
        if address.get("job_id") == env.job_id and address.get("attempt") == env.attempt:
            return dist.TCPStore(
                address["host"],
                address["port"],
                env.world_size,
                is_master=False,
                wait_for_workers=False,
                timeout=timeout,
            )
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not write {attempt.rendezvous.name} within {timeout.total_seconds():.0f} s")
        time.sleep(0.05)
