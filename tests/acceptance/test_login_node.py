"""What plan takes of the machine it runs on, for the largest problems: memory within what a login node grants, seconds printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli import Cli

pytestmark = pytest.mark.timeout(3000)
LARGE = """
name: large
problem: {image_size: [EDGE, EDGE], data: {source: synthetic}}
denoiser: {name: drunet, weights: random}
algorithm: {iterations: 5}
tiling: {patch: 448, halo: 32, max_batch_size: BATCH, checkpoint: MODE}
resources: {gpus: GPUS, layout: LAYOUT}
train: {steps: 100, images: 8}
"""
CLUSTER = "launcher: slurm\ngpus_per_node: 4\ngpu_memory_gib: 32\npartition: gpu\n"
MOST_BYTES = 1.5e9

_RUN = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr, "seconds": time.perf_counter() - begin,
                  "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024}))
"""
"""The command in a process that has no other children, so that the largest of them is the command's or one it has started."""


def plan(cli: Cli, spec: Path) -> dict[str, Any]:
    """How `dptrain plan SPEC --json` ended, and what the largest of its processes took."""
    words = [sys.executable, "-c", _RUN, *cli.words("plan", spec, "--cluster", "gpus", "--json")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cli.folder, env=dict(cli.env), check=True)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
@pytest.mark.parametrize(("edge", "gpus", "batch", "mode"), [(8192, 64, "1", "always"), (4096, 1, "fit", "fit")])
def test_a_plan_of_a_large_problem(tmp_path: Path, edge: int, gpus: int, layout: str, batch: str, mode: str) -> None:
    cli = Cli(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    profiles = tmp_path / "config" / "dptrain" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "gpus.yaml").write_text(CLUSTER)
    text = LARGE
    for name, value in (("EDGE", edge), ("BATCH", batch), ("MODE", mode), ("GPUS", gpus), ("LAYOUT", layout)):
        text = text.replace(name, str(value))
    first, again = plan(cli, spec := cli.write("large.yaml", text)), plan(cli, spec)
    made = json.loads(first["out"])
    print(
        f"{edge}^2 on {gpus}, {layout}, batch {batch} -> {made['max_batch_size']}, checkpoint {mode} -> {made['checkpoint']}: "
        f"{first['seconds']:.1f} s ({first['cpu_s']:.1f} s of CPU), largest process {first['peak_bytes'] / 1e9:.2f} GB; "
        f"again {again['seconds']:.2f} s ({again['cpu_s']:.2f} s of CPU); peak {made['memory']['peak_gib']:.2f} GiB, fits {made['fits']}"
    )
    repeated = json.loads(again["out"])
    assert made["memory"]["peak_gib"] > 0 and all(repeated[key] == made[key] for key in ("memory", "choices"))
    assert max(first["peak_bytes"], again["peak_bytes"]) <= MOST_BYTES
