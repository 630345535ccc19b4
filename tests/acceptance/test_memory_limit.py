"""A reconstruction that no rank has the memory for as a whole: impossible in layout replicated, done by two ranks in layout sharded.

Both runs have the same limit on the address space of every process (`ulimit -v`): what a rank takes for an image of 64 x 64, with
libraries, threads and buffers, and a budget on top. Truth is left out, since measuring against it takes memory of its own.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from dptrain.launch.local import rank_pids
from dptrain.records.index import find_runs
from tests.cli.cli import Cli, Done

SIZE = 4096
IMAGE_BYTES = 3 * SIZE * SIZE * 4
BUDGET_BYTES = 6 * IMAGE_BYTES
"""Measured above 64 x 64, in images: sharded 4.1 on rank 0, which writes, and 3.1 on rank 1; replicated at least 8.6."""
SPEC = """\
name: large
problem: {{image_size: [{size}, {size}], channels: 3, physics: {{name: denoise}}, data: {{measurements: y-{size}.npy, truth: null}}}}
denoiser: {{name: dncnn, weights: random, depth: 3, width: 4}}
algorithm: {{iterations: 2}}
tiling: {{patch: {patch}, halo: 8, max_batch_size: 1}}
resources: {{gpus: 2}}
"""


def spec_of(cli: Cli, size: int, patch: int) -> Path:
    """A spec with its measurements, 8 bits a number so that the file itself takes little."""
    np.save(cli.folder / f"y-{size}.npy", np.random.default_rng(0).integers(0, 256, (3, size, size), np.uint8))
    return cli.write(f"{size}.yaml", SPEC.format(size=size, patch=patch))


def words(spec: Path, layout: str) -> list[object]:
    return ["infer", spec, "--set", f"resources.layout={layout}", "--wait"]


def baseline_bytes(cli: Cli) -> int:
    """The most address space that a rank takes where the image is nothing."""
    most = 0
    with cli.start(*words(spec_of(cli, 64, 32), "replicated")) as process:
        while process.poll() is None:
            for paths in find_runs(cli.folder / "runs"):
                most = max([most, *(address_space_bytes(pid) for pid in rank_pids(paths))])
            time.sleep(0.05)
    assert process.returncode == 0
    return most


def address_space_bytes(pid: int) -> int:
    """Its peak; 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmPeak:"))


def limited(cli: Cli, limit_bytes: int, *command: object) -> Done:
    """The tool in a shell that limits the address space of what it starts."""
    shell = ["bash", "-c", f'ulimit -v {limit_bytes // 1024} && exec "$@"', "limited", *cli.words(*command)]
    done = subprocess.run(
        shell, capture_output=True, text=True, cwd=cli.folder, env=cli.env, stdin=subprocess.DEVNULL, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.timeout(900)
def test_the_layout_sharded_completes_what_kills_the_layout_replicated(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    baseline = baseline_bytes(cli)
    limit = baseline + BUDGET_BYTES
    print(f"baseline {baseline / 1e9:.2f} GB, image {IMAGE_BYTES / 1e9:.2f} GB, limit {limit / 1e9:.2f} GB per rank")
    spec = spec_of(cli, SIZE, 512)

    whole = limited(cli, limit, *words(spec, "replicated"))
    (entry,) = json.loads(cli("status", "last", "--json").out)
    print(f"replicated: {entry['state']}: {entry['failure']['message']}")
    assert whole.code == 1 and entry["state"] == "failed: out-of-memory (host)", whole.err
    assert entry["failure"]["class"] == "out-of-memory (host)" and entry["failure"]["rank"] in (0, 1)

    boxes = limited(cli, limit, *words(spec, "sharded"))
    (entry,) = json.loads(cli("status", "last", "--json").out)
    print(f"sharded: {entry['state']}, {entry['peak_memory_bytes'] / IMAGE_BYTES:.1f} images in tensors at the most")
    assert boxes.code == 0 and entry["state"] == "completed", boxes.err
    image = np.load(Path(entry["run_dir"]) / "output" / "reconstruction.npy", mmap_mode="r")
    assert image.shape == (3, SIZE, SIZE) and bool(np.isfinite(image[:, ::64]).all())
