"""Real gloo ranks for tests: a pool of processes that stay alive for the session, since starting one imports torch anew.

`pool.run(world_size, function, *args)` calls `function(env, *args)` on that many ranks, inside a fresh process group, and
returns their results in rank order. The function is a module-level one; an exception on a rank is raised here with its traceback.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

TIMEOUT_S = int(os.environ.get("DPTRAIN_TEST_TIMEOUT_S") or 120)
"""A machine that others use too may need more."""


class RankPool:
    """Processes 0..n-1, started when first needed.

    All runs share one store, each under its own prefix: a connection to a new one takes five seconds now and then in sandboxes.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, multiprocessing.connection.Connection]] = []
        self._store: Any = None
        self._runs = 0

    def run(self, world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Results of `function(env, *args)` on every rank."""
        while len(self._members) < world_size:
            self._start()
        self._runs += 1
        for rank in range(world_size):
            self._members[rank][1].send((function, rank, world_size, self._runs, args))
        outcomes = []
        for rank in range(world_size):
            pipe = self._members[rank][1]
            assert pipe.poll(TIMEOUT_S), f"rank {rank} of {world_size} gave no answer within {TIMEOUT_S} s"
            outcomes.append(pipe.recv())
        failures = [f"rank {rank}:\n{value}" for rank, (good, value) in enumerate(outcomes) if not good]
        assert not failures, "\n".join(failures)
        return [value for _, value in outcomes]

    def close(self) -> None:
        """End every process."""
        for process, pipe in self._members:
            pipe.close()
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        self._members.clear()

    def _start(self) -> None:
        if self._store is None:
            import torch.distributed as dist

            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._store.port), daemon=True)
        process.start()
        theirs.close()
        self._members.append((process, ours))


def _serve(pipe: multiprocessing.connection.Connection, port: int) -> None:
    import torch
    import torch.distributed as dist

    from dptrain.engine.context import RankEnvironment

    torch.set_num_threads(1)
    every_run = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    while True:
        try:
            function, rank, world_size, run, args = pipe.recv()
        except EOFError:
            return
        env = RankEnvironment(
            rank=rank,
            world_size=world_size,
            local_rank=rank,
            local_world_size=world_size,
            job_id="test",
            attempt=1,
            launcher="local",
        )
        env.export()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        try:
            store = dist.PrefixStore(str(run), every_run)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=TIMEOUT_S / 2)
            )
            outcome = (True, function(env, *args))
            dist.barrier()
        except BaseException:
            outcome = (False, traceback.format_exc())
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(outcome)
