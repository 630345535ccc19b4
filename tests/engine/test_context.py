"""What torch's process groups are told before and after they are made."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dptrain.engine.context import RankEnvironment, check_interface, nccl_environment
from dptrain.errors import UsageError
from dptrain.records.paths import AttemptPaths
from tests.engine.helpers import context
from tests.ranks import RankPool


def test_nccl_ends_by_itself_and_leaves_a_trace(tmp_path: Path) -> None:
    values = nccl_environment(AttemptPaths(tmp_path), 660)
    assert values["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3", "the process ends, without a teardown that waits"
    assert values["TORCH_NCCL_ENABLE_MONITORING"] == "1" and values["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "660"
    assert int(values["TORCH_NCCL_TRACE_BUFFER_SIZE"]) > 0 and values["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert values["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == str(tmp_path / "nccl-"), "torch appends the rank"
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in values)


def test_the_installed_torch_knows_these_variables() -> None:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    gpu = library.with_name("libtorch_cuda.so")
    words = library.read_bytes() + (gpu.read_bytes() if gpu.exists() else b"")
    for name in nccl_environment(AttemptPaths(Path("/x")), 1):
        assert not gpu.exists() or name.encode() in words, name


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    check_interface("n1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    check_interface("n1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(
        UsageError, match=r"n1 has no network interface nosuch0 .*it has: .*lo(.|\n)*`interface` in the"
    ):
        check_interface("n1")


def limits(env: RankEnvironment) -> list[timedelta]:
    ctx = context(env, replicas=2)
    found: list[timedelta] = []
    for seconds in (70, 660):
        ctx.limit_collectives(seconds)
        groups: list[Any] = [dist.group.WORLD, ctx.mesh.spatial_group]
        found += [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
    return found


def test_collectives_have_the_limit_of_the_phase(ranks: RankPool) -> None:
    expected = [timedelta(seconds=s) for s in (70, 70, 660, 660)]
    assert ranks.run(4, limits) == [expected] * 4
