"""Times one call of the denoiser as the ranks will make it, for plan: a request on stdin, one JSON line on stdout.

    {"spec": "name: ...", "task": "train", "tiles": 2, "checkpoint": "always"}
    {"seconds": 0.8, "device": "cpu", "threads": 1}

The device is that of this process: a GPU where there is one. `checkpoint` is always, never or stages.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from dptrain.engine.build import DTYPES
from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.measure import card_name
from dptrain.engine.tiled import InnerDenoiser
from dptrain.geometry.tiles import tile_grid
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Spec, Task

REPEATS = 3
ENOUGH_S = 20.0
"""After so long no further call is made."""
LEVEL = 0.05
"""Any noise level takes the same time."""


class Pilot:
    """A batch of tiles of a spec, and what a rank does with it."""

    def __init__(self, spec: Spec, task: Task, tiles: int, checkpoint: str, device: torch.device) -> None:
        """
        :param tiles: in the call.
        :param checkpoint: always, never or stages.
        """
        dtype = DTYPES[spec.resources.precision]
        train = spec.train if task == "train" else None
        network = build_denoiser(spec, device, dtype)
        network.requires_grad_(train is not None and "denoiser" in train.trainable)
        self.denoiser = InnerDenoiser(
            network,
            bf16=spec.resources.precision == "bf16",
            compiled=spec.resources.compile,
            stages=train is not None and checkpoint == "stages",
        )
        images = 1 if train is None else train.batch_size
        window = tile_grid(spec.problem.image_size, spec.tiling).window_shape
        self.x = torch.rand((tiles * images, spec.problem.channels, *window), device=device, dtype=dtype)
        self.trains, self.twice = train is not None, checkpoint != "never"

    def call(self) -> None:
        """One forward pass; in training also the backward pass, after another forward pass where nothing was kept of the first."""
        if not self.trains or self.twice:
            with torch.no_grad():
                self.denoiser(self.x, LEVEL)
        if self.trains:
            out = self.denoiser(self.x.detach().requires_grad_(), LEVEL)
            out.backward(torch.ones_like(out))

    def seconds(self) -> float:
        """Median of some calls after a first one."""
        self._timed()
        times: list[float] = []
        while not times or (len(times) < REPEATS and sum(times) < ENOUGH_S):
            times.append(self._timed())
        return statistics.median(times)

    def _timed(self) -> float:
        start = time.perf_counter()
        self.call()
        if self.x.device.type == "cuda":
            torch.cuda.synchronize(self.x.device)
        return time.perf_counter() - start


def main() -> None:
    """Answer the request of stdin."""
    asked = json.load(sys.stdin)
    # Where memory runs out this process is to go, and no other.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec = parse_spec(asked["spec"], "the spec", Path.cwd()).spec
    pilot = Pilot(spec, asked["task"], asked["tiles"], asked["checkpoint"], device)
    print(json.dumps({"seconds": pilot.seconds(), "device": card_name(device), "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
