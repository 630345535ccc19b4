"""The built-in denoiser against deepinv's total variation denoiser on the held-out photographs.

    python benchmarks/denoiser.py [--channels 3] [--weights builtin] [--size 256] [--json out.json]

For each noise level it prints PSNR in dB per image and their mean: of the noisy image, of the network, and of TV with the one
threshold of a printed grid that is best in the mean over those same images. Exit code 1 unless the network is `GAIN_DB` better in
the mean at every level and no best threshold lies at an end of the grid.
Needs the photographs: pip install "dptrain[weights]".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from deepinv.models import TVDenoiser
from torch import Tensor

from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.problems.random_fields import normal_like
from dptrain.engine.problems.training import listed, photographs
from dptrain.spec.schema import Denoiser, Problem, Spec

SIGMAS = (0.05, 0.1, 0.2)
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)
"""In units of sigma."""
GAIN_DB = 1.0
"""What the built-in weights must be better by."""


def psnr_db(estimate: Tensor, truth: Tensor) -> list[float]:
    """One number per image, of values in [0, 1]."""
    mse = (estimate - truth).square().flatten(1).mean(1)
    return [float(value) for value in -10 * torch.log10(mse)]


def total_variation(noisy: Tensor, threshold: float) -> Tensor:
    """deepinv's TV denoiser, started afresh, image by image (its stopping rule looks at the whole batch)."""
    return torch.cat([TVDenoiser(n_it_max=1000, crit=1e-5)(image[None], threshold) for image in noisy])


def compare(denoiser: torch.nn.Module, truth: Tensor, sigma: float) -> dict[str, object]:
    """All numbers of one noise level."""
    noisy = torch.cat([x[None] + sigma * normal_like(("benchmark", i), x[None]) for i, x in enumerate(truth)])
    with torch.no_grad():
        ours = psnr_db(denoiser(noisy, sigma), truth)
        grid = {factor: psnr_db(total_variation(noisy, factor * sigma), truth) for factor in THRESHOLDS}
    best = max(grid, key=lambda factor: sum(grid[factor]))
    return {"sigma": sigma, "noisy": psnr_db(noisy, truth), "ours": ours, "tv": grid[best], "best": best, "grid": grid}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def report(row: dict[str, object], names: list[str]) -> bool:
    """Print one noise level; says whether it is as it must be."""
    noisy, ours, tv, grid = row["noisy"], row["ours"], row["tv"], row["grid"]
    assert isinstance(noisy, list) and isinstance(ours, list) and isinstance(tv, list) and isinstance(grid, dict)
    print(f"\nsigma {row['sigma']}: PSNR in dB")
    print(f"  {'image':<16}{'noisy':>8}{'ours':>8}{'TV':>8}{'gain':>8}")
    for name, a, b, c in zip(
        [*names, "mean"], [*noisy, mean(noisy)], [*ours, mean(ours)], [*tv, mean(tv)], strict=True
    ):
        print(f"  {name:<16}{a:8.2f}{b:8.2f}{c:8.2f}{b - c:+8.2f}")
    print("  TV, mean, by threshold / sigma: " + "  ".join(f"{f}: {mean(v):.2f}" for f, v in grid.items()))
    inside = row["best"] not in (THRESHOLDS[0], THRESHOLDS[-1])
    print(f"  best threshold {row['best']} sigma, {'inside' if inside else 'AT THE END OF'} the grid")
    return inside and mean(ours) - mean(tv) >= GAIN_DB


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3)
    parser.add_argument("--weights", default="builtin", help="as denoiser.weights in a spec")
    parser.add_argument("--size", type=int, default=256, help="edge of the centre crops in pixels")
    parser.add_argument("--json", type=Path, help="write every number here")
    arguments = parser.parse_args()
    size = (arguments.size, arguments.size)
    spec = Spec(
        name="benchmark",
        problem=Problem(image_size=size, channels=arguments.channels),
        denoiser=Denoiser(weights=arguments.weights),
    )
    denoiser = build_denoiser(spec, torch.device("cpu"), torch.float32).eval()
    truth = torch.stack(photographs(image_size=size, channels=arguments.channels)).float()
    names = [Path(photograph.file).stem for photograph in listed("held_out")]
    print(
        f"{sum(p.numel() for p in denoiser.parameters())} parameters, {arguments.channels} channels, crops of {size[0]} x {size[1]}"
    )
    rows, good = [], True
    for sigma in SIGMAS:
        rows.append(compare(denoiser, truth, sigma))
        good &= report(rows[-1], names)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{'at least' if good else 'NOT'} {GAIN_DB} dB above TV at every noise level")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
