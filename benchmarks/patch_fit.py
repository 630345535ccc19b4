"""What `patch: fit` gains over one patch for all: load of the busiest rank for images of 512 to 8192 pixels on 2 to 64 ranks.

    python benchmarks/patch_fit.py [--halo 32] [--stride 8] [--json out.json]

The load is (largest over mean number of tiles per rank) x (padded tile area over image area): step time relative to an ideal
split without halos. Pure geometry, nothing is run. Exit code 1 where the fitted patch is more than 2 % worse than patch 448 or
512 for any image and number of ranks, or not better on average.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Literal

from dptrain.geometry.boxes import split_boxes
from dptrain.geometry.patches import fit_patch, measured
from dptrain.geometry.tiles import TileGrid

SIZES = range(512, 8192 + 1, 256)
RANKS = range(2, 64 + 1)
FIXED = (448, 512)
WORSE = 1.02
"""The factor by which a fitted patch may be worse."""

Layout = Literal["replicated", "sharded"]


def row(edge: int, ranks: int, halo: int, layout: Layout, stride: int) -> dict[str, Any]:
    """The fitted patch of one square image, its load, and the loads of the fixed patches."""
    shape = (edge, edge)
    owned = split_boxes(shape, ranks, (2, 2)) if layout == "sharded" else None
    fitted = fit_patch(shape, halo, ranks, owned, stride=stride, smallest_window=32)
    fixed = {str(patch): measured(TileGrid(shape, patch, halo), ranks, owned).load for patch in FIXED}
    return {"layout": layout, "size": edge, "ranks": ranks, "patch": fitted.edge, "load": fitted.load, "fixed": fixed}


def is_good(rows: list[dict[str, Any]]) -> bool:
    """Print the summary of one layout; says whether it is as it must be."""
    mean = sum(r["load"] for r in rows) / len(rows)
    good = True
    for patch in map(str, FIXED):
        ratios = [r["load"] / r["fixed"][patch] for r in rows]
        other = sum(r["fixed"][patch] for r in rows) / len(rows)
        good &= max(ratios) <= WORSE and mean < other
        print(
            f"  patch {patch}: mean load {other:.4f} against {mean:.4f}; fitted / fixed: mean {sum(ratios) / len(ratios):.4f}, "
            f"worst {max(ratios):.4f}, best {min(ratios):.4f}"
        )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--halo", type=int, default=32)
    parser.add_argument("--stride", type=int, default=8, help="the network's")
    parser.add_argument("--json", type=Path, help="write every row here")
    arguments = parser.parse_args()
    good, every = True, []
    layouts: tuple[Layout, ...] = ("replicated", "sharded")
    for layout in layouts:
        rows = [row(edge, ranks, arguments.halo, layout, arguments.stride) for edge in SIZES for ranks in RANKS]
        every += rows
        print(f"{layout}: {len(rows)} images x ranks, halo {arguments.halo}")
        good &= is_good(rows)
        for edge in (512, 1024, 2048, 4096, 8192):
            shown = [r for r in rows if r["size"] == edge and r["ranks"] in (2, 4, 8, 16, 32, 64)]
            print(f"  {edge:>5}: " + ", ".join(f"{r['ranks']} ranks {r['patch']} ({r['load']:.2f})" for r in shown))
    if arguments.json:
        arguments.json.write_text(json.dumps(every, indent=1) + "\n")
    print("never more than 2 % worse, better on average" if good else "NOT as it must be")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
