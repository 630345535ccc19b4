"""What a layout means for the ranks, without torch: tiles of each, and the bytes that travel per step."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from dptrain.geometry.boxes import Box, cells, split_boxes
from dptrain.geometry.dealing import Dealing, deal_tiles
from dptrain.geometry.footprints import Boundary, Footprint, fidelity_plan
from dptrain.geometry.messages import ExchangePlan
from dptrain.geometry.tiles import Counts, TileGrid
from dptrain.spec.checks import SUPERRES_KERNEL, deblur_kernel
from dptrain.spec.schema import PROXIMAL, Deblur, Factory, MultiframeSuperres, Spec, Task

ELEMENT_BYTES = {"float32": 4, "float64": 8, "bf16": 4}


def tiles_per_rank(spec: Spec, grid: TileGrid) -> Counts:
    """Tiles of the ranks, each for an image of its replica. With a physics of a factory in layout sharded: as if its boxes may be
    cut anywhere."""
    ranks, replicas = spec.resources.ranks_per_replica, spec.resources.replicas
    if spec.resources.layout == "replicated":
        return grid.deal_counts(ranks)
    counts = [len(tiles) for tiles in _dealing(grid, ranks, _stride(spec)).tiles]
    return Counts(most=max(counts), mean=len(grid) / ranks, idle=replicas * counts.count(0))


def boxless(spec: Spec, grid: TileGrid) -> str | None:
    """In layout sharded: which ranks own no pixels, and why; None where every rank does."""
    each, replicas, stride = spec.resources.ranks_per_replica, spec.resources.replicas, _stride(spec)
    without = sum(not cells(box) for box in _dealing(grid, each, stride).owned)
    if not without:
        return None
    blocks, edges = (
        " x ".join(map(str, n)) for n in ([-(-n // s) for n, s in zip(grid.shape, stride, strict=True)], stride)
    )
    return (
        f"{replicas * without} of {spec.resources.gpus} ranks own no pixels: boxes are cut between blocks of the operators' stride "
        f"({edges} pixels), and {blocks} blocks make at most {each - without} boxes for {each} ranks"
    )


def owned_boxes(spec: Spec) -> list[Box] | None:
    """Box of each rank of a replica in layout sharded; None in layout replicated. With a physics of a factory: as if cut anywhere."""
    if spec.resources.layout == "replicated":
        return None
    return split_boxes(spec.problem.image_size, spec.resources.ranks_per_replica, _stride(spec))


def bytes_per_step(spec: Spec, task: Task, grid: TileGrid) -> int | None:
    """Bytes a rank sends per iteration (inference) or optimiser step (training); None: not known.

    Without the gradients of the weights and single numbers. In layout sharded that of the rank that sends most. A proximal step
    takes as many exchanges as its solver takes iterations, which the data decide.
    """
    if spec.algorithm.name in PROXIMAL and spec.resources.ranks_per_replica > 1:
        return None
    cell = _cell_bytes(spec, task)
    if spec.resources.layout == "replicated":
        return _replicated(spec, task, cell * prod(spec.problem.image_size))
    operators = footprints(spec)
    return None if operators is None else _sharded(spec, task, grid, operators, cell)


def bytes_per_normal(spec: Spec, task: Task, grid: TileGrid) -> int | None:
    """Bytes that the rank that sends most sends per A^T A: per iteration of the solver of a proximal step; None: not known."""
    cell, ranks = _cell_bytes(spec, task), spec.resources.ranks_per_replica
    if spec.resources.layout == "replicated":
        return _summed(cell * prod(grid.shape), ranks)
    operators = footprints(spec)
    if operators is None:
        return None
    data = fidelity_plan(operators, 0, grid.shape, _dealing(grid, ranks, _stride(spec)).owned)
    return max(data.bytes_sent(rank, cell) + data.bytes_received(rank, cell) for rank in range(ranks))


def footprints(spec: Spec) -> list[list[Footprint]] | None:
    """What the operators of a built-in physics read, one for each that differs; None for user code."""
    physics, axes = spec.problem.physics, len(spec.problem.image_size)
    if isinstance(physics, Factory):
        return None
    reach, factor, boundary = 0, 1, _NOTHING_BEYOND
    if isinstance(physics, MultiframeSuperres):
        reach, factor, boundary = SUPERRES_KERNEL // 2, physics.factor, "circular"
    elif isinstance(physics, Deblur):
        reach, boundary = deblur_kernel(physics.blur_sigma) // 2, "circular"
    return [[Footprint(halo=((reach, reach),) * axes, stride=(factor,) * axes, boundary=boundary)]]


_NOTHING_BEYOND: Boundary = "none"


def _cell_bytes(spec: Spec, task: Task) -> int:
    """Of one pixel, all channels and images of the batch."""
    images = spec.train.batch_size if task == "train" and spec.train is not None else 1
    return images * spec.problem.channels * ELEMENT_BYTES[spec.resources.precision]


def _stride(spec: Spec) -> tuple[int, ...]:
    operators = footprints(spec)
    return operators[0][0].stride if operators else (1,) * len(spec.problem.image_size)


@lru_cache(maxsize=8)
def _dealing(grid: TileGrid, ranks: int, stride: tuple[int, ...]) -> Dealing:
    return deal_tiles(grid, split_boxes(grid.shape, ranks, stride))


def _summed(image_bytes: int, ranks: int) -> int:
    """Sent by each rank while an image is summed over the ranks, as a ring does it."""
    return 2 * (ranks - 1) * image_bytes // ranks


def _replicated(spec: Spec, task: Task, image_bytes: int) -> int:
    """The image is summed over ranks once per data step and once per denoiser call.

    Training adds A^T y before the first step, and a backward pass that repeats both sums and one more for the input of every
    data step but the first: 5 K - 1 images with deepinv 0.5.
    """
    images = 5 * spec.algorithm.iterations - 1 if task == "train" else 2
    return _summed(images * image_bytes, spec.resources.gpus)


def _sharded(spec: Spec, task: Task, grid: TileGrid, operators: list[list[Footprint]], cell: int) -> int:
    """Of the exchanges: the adjoint of one sends what it received."""
    ranks = spec.resources.ranks_per_replica
    dealing = _dealing(grid, ranks, _stride(spec))
    data = fidelity_plan(operators, 0, grid.shape, dealing.owned)
    fetch, back = dealing.fetch_plan(), dealing.return_plan()
    k = spec.algorithm.iterations

    def sends(plan: ExchangePlan, rank: int, forwards: int, backwards: int) -> int:
        return forwards * plan.bytes_sent(rank, cell) + backwards * plan.bytes_received(rank, cell)

    def of_rank(rank: int) -> int:
        if task == "infer" or spec.train is None:
            return sends(data, rank, 1, 1) + sends(fetch, rank, 1, 0) + sends(back, rank, 1, 0)
        # A^T y is one scatter. The first iterate has no gradient, and what is denoised first has one through gamma_0 alone.
        first = 0 if "step_size" in spec.train.trainable else 1
        return sends(data, rank, 2 * k - 1, 2 * k) + sends(fetch, rank, k, k - first) + sends(back, rank, k, k)

    return max(of_rank(rank) for rank in range(ranks))
