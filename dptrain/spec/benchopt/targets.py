"""What each parameter of the benchmarks is called in a spec: one `Target` per key of the spec.

A target names the parameters that it is made from, so that a list of values reaches every key it changes. Parameters that the file
leaves out have the benchmark's own defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dptrain.spec.benchopt.remarks import Notes
from dptrain.spec.benchopt.values import as_bool, as_int, as_text, is_none, pixels, time_min, word
from dptrain.spec.scalars import Unreadable
from dptrain.spec.schema import Run
from dptrain.spec.tree import Items, Node, Scalar, Where

T = TypeVar("T")


class Wrong(Exception):
    """A value for which there is no run."""

    def __init__(self, where: Where, found: str, write: str) -> None:
        super().__init__(found)
        self.where, self.found, self.write = where, found, write


@dataclass(frozen=True, kw_only=True)
class Row:
    """One combination of values: parameter -> node. Its readers raise Wrong."""

    values: Mapping[str, Node]
    where: Where
    """Of the solver: the position of what is nowhere in the file."""
    notes: Notes

    def __getitem__(self, key: str) -> Node:
        return self.values[key]

    def has(self, key: str) -> bool:
        """Whether it has such a parameter, and a value of it."""
        return key in self.values and not is_none(self.values[key])

    def read(self, key: str, reader: Callable[[Node], T]) -> T:
        """The value of a parameter."""
        node = self[key]
        try:
            return reader(node)
        except Unreadable as error:
            raise Wrong(node.where, f"{key} is {error.found}", error.write and f"{key}: {error.write}") from None

    def count(self, key: str) -> int:
        """A whole number of at least 1; 1 where there is no such parameter."""
        return self.read(key, lambda node: as_int(node, at_least=1)) if self.has(key) else 1

    def edges(self, key: str) -> list[int]:
        """Edges in pixels, [0] for nothing."""
        return self.read(key, pixels) if self.has(key) else [0]

    @property
    def is_volume(self) -> bool:
        return len(self.edges("image_size")) == 3

    @property
    def tiled(self) -> bool:
        """Whether the denoiser works patch by patch: `distribute_denoiser` or `distribute_model`, and a patch above 0."""
        key = "distribute_model" if self.has("distribute_model") else "distribute_denoiser"
        return self.has(key) and self.read(key, as_bool) and self.edges("patch_size") != [0]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One key of the spec."""

    key: str
    sources: tuple[str, ...]
    """Parameters that it depends on."""
    make: Callable[[Row], Node | None]
    """The value; None: the key is not written. Raises Wrong."""


def copied(key: str, source: str) -> Target:
    """A parameter that the spec has under another name; the spec's own reader judges its value."""
    return Target(key=key, sources=(source,), make=lambda row: row[source])


def fixed(key: str, text: str) -> Target:
    """A key that the benchmark fixes."""
    return Target(key=key, sources=(), make=lambda row: word(text, row.where))


def image_size(row: Row) -> Node:
    node = row["image_size"]
    edges = row.edges("image_size")
    if len(edges) > 1:
        return node
    return Items((word(edges[0], node.where), word(edges[0], node.where)), node.where)


def physics_name(row: Row) -> Node:
    return word("denoise" if row.is_volume else "multiframe_superres", row["image_size"].where)


def _flat(text: str) -> Callable[[Row], Node | None]:
    """A constant of the 2-D physics."""
    return lambda row: None if row.is_volume else word(text, row.where)


def frames(row: Row) -> Node | None:
    if row.is_volume:
        row.notes.unmapped("dataset.num_operators", row["num_operators"], "a volume is denoised: it has one operator")
        return None
    return row["num_operators"]


def weights(row: Row) -> Node:
    """The benchmark's networks come with deepinv's weights, of which dptrain has those for 2-D images of 1 or 3 channels."""
    name = row.read("denoiser", as_text)
    known = name in ("drunet", "dncnn") and not row.is_volume and row.count("channels") in (1, 3)
    if not known:
        row.notes.choice(
            "solver.denoiser", row["denoiser"], "weights: random; there are no pretrained ones for this image"
        )
    return word("pretrained" if known else "random", row["denoiser"].where)


def gpus(row: Row) -> Node:
    """One rank per task: nodes x tasks per node."""
    nodes, each = placement(row)
    _check_gres(row, each)
    tasks, processes = row["slurm_ntasks_per_node"].where, row["torchrun_nproc_per_node"]
    where = tasks if row.count("torchrun_nproc_per_node") == 1 else processes.where
    if nodes * each > 1 and not row.tiled:
        raise Wrong(
            where,
            f"{nodes} x {each} ranks with an untiled denoiser; on several ranks dptrain always tiles it",
            "distribute_denoiser: true (or distribute_model) with a patch_size above 0, or one rank",
        )
    if nodes * each > 1 and row.has("distribute_physics") and not row.read("distribute_physics", as_bool):
        node = row["distribute_physics"]
        row.notes.choice("solver.distribute_physics", node, "layout: replicated deals the operators to the ranks")
    return word(nodes * each, where)


def placement(row: Row) -> tuple[int, int]:
    """(nodes, ranks on each)."""
    return row.count("slurm_nodes"), row.count("slurm_ntasks_per_node") * row.count("torchrun_nproc_per_node")


def _check_gres(row: Row, each: int) -> None:
    if not row.has("slurm_gres"):
        return
    node = row["slurm_gres"]
    kind, *rest = row.read("slurm_gres", as_text).split(":")
    if kind != "gpu" or not rest or not rest[-1].isdigit():
        row.notes.unmapped(
            "solver.slurm_gres", node, "dptrain asks for one GPU per rank; the profile's gpu_request says how"
        )
        return
    if int(rest[-1]) != each:
        row.notes.choice("solver.slurm_gres", node, f"{each} ranks per node: dptrain asks for one GPU per rank")
    if len(rest) > 1:
        row.notes.unmapped(
            "solver.slurm_gres", node, f"the card {rest[0]}: a profile's constraint or partition says it"
        )


def patch(row: Row) -> Node:
    node = row["patch_size"]
    if not row.tiled:
        return word("none", node.where)
    edges = row.edges("patch_size")
    if len(set(edges)) > 1:
        row.notes.unmapped("solver.patch_size", node, "patches have the same length along every axis; patch: fit")
        return word("fit", node.where)
    return word(edges[0], node.where)


def halo(row: Row) -> Node:
    node = row["overlap"]
    if not row.tiled:
        return word(0, node.where)
    edges = row.edges("overlap")
    if len(set(edges)) > 1:
        row.notes.unmapped("solver.overlap", node, f"the halo is the same along every axis; halo: {max(edges)}")
    return word(max(edges), node.where)


def max_batch_size(row: Row) -> Node:
    node = row["max_batch_size"]
    if not row.tiled:
        return word(1, node.where)
    every = not row.has("max_batch_size") or row.read("max_batch_size", as_int) == 0
    return word("fit", node.where) if every else node


def checkpoint(row: Row) -> Node:
    return row["checkpoint_batches"] if row.tiled else word("never", row["checkpoint_batches"].where)


def step_size(row: Row) -> Node:
    node = row["step_size"]
    if not is_none(node):
        return node
    scale = row["step_size_scale"]
    if not isinstance(scale, Scalar) or scale.text != "0.99":
        row.notes.unmapped("solver.step_size_scale", scale, "step_size: auto is 0.99 / ||A||^2")
    return word("auto", node.where)


def init(row: Row) -> Node:
    node = row["init_method"]
    if row.read("init_method", as_text) == "pseudo_inverse":
        row.notes.unmapped("solver.init_method", node, "there is no pseudo-inverse; init: adjoint")
        return word("adjoint", node.where)
    return node


def compiled(row: Row) -> Node:
    node = row["compile"]
    if is_none(node) or (isinstance(node, Scalar) and node.plain and node.text.lower() in ("false", "no", "off")):
        return word("false", node.where)
    if row.read("compile", as_text) != "pre":
        row.notes.choice(
            "solver.compile", node, "compile: true is torch.compile of the network of a patch, as `pre` is"
        )
    return word("true", node.where)


def trainable(row: Row) -> Node:
    node = row["train_algo_params"]
    names = ("denoiser", "step_size", "sigma") if row.read("train_algo_params", as_bool) else ("denoiser",)
    return Items(tuple(word(name, node.where) for name in names), node.where)


def wall_time(row: Row) -> Node | None:
    if not row.has("slurm_time"):
        return None
    node = row["slurm_time"]
    minutes, bare = row.read("slurm_time", time_min)
    if bare:
        row.notes.choice("slurm_time", node, f"read as seconds, as the benchmark documents it: time_min: {minutes}")
    return word(minutes, node.where)


def measure(row: Row) -> Node | None:
    """The benchmark's backends are dptrain's modes, under other names."""
    if "profiler_mode" not in row.values:
        return None
    node = row["profiler_mode"]
    mode = MODES.get("null" if is_none(node) else row.read("profiler_mode", as_text))
    if mode is None:
        said = "no such mode" if not is_none(node) else "sections of every step and peak memory are always measured"
        row.notes.unmapped("solver.profiler_mode", node, f"{said}; measure: custom")
    return word(mode or "custom", node.where)


def measure_warmup(row: Row) -> Node | None:
    if "profiler_warmup" not in row.values:
        return None
    node = row["profiler_warmup"]
    return word(row.read("profiler_warmup", as_int) if row.has("profiler_warmup") else 0, node.where)


def measure_steps(row: Row) -> Node | None:
    if "profiler_active" not in row.values:
        return None
    node = row["profiler_active"]
    steps = row.read("profiler_active", as_int) if row.has("profiler_active") else 0
    if steps == 0:
        steps = Run().measure_steps
        row.notes.unmapped(
            "solver.profiler_active", node, f"there is no `every remaining step`; measure_steps: {steps}"
        )
    return word(steps, node.where)


MODES = {"custom": "custom", "torch": "torch", "nvidia": "nvtx"}
"""`profiler_mode` -> `run.measure`."""
SHAPE = ("distribute_denoiser", "distribute_model", "patch_size")
RANKS = ("slurm_ntasks_per_node", "slurm_nodes", "torchrun_nproc_per_node", "slurm_gres", "distribute_physics")

COMMON = (
    Target(key="problem.image_size", sources=("image_size",), make=image_size),
    copied("problem.channels", "channels"),
    Target(key="problem.physics.name", sources=("image_size",), make=physics_name),
    Target(key="problem.physics.frames", sources=("num_operators", "image_size"), make=frames),
    Target(key="problem.physics.factor", sources=("image_size",), make=_flat("2")),
    Target(key="problem.physics.blur_sigma", sources=("image_size",), make=_flat("1.0")),
    copied("problem.physics.noise_std", "noise_level"),
    copied("denoiser.name", "denoiser"),
    Target(key="denoiser.weights", sources=("denoiser", "image_size", "channels"), make=weights),
    copied("algorithm.sigma", "denoiser_sigma"),
    Target(key="tiling.patch", sources=SHAPE, make=patch),
    Target(key="tiling.halo", sources=("overlap", *SHAPE), make=halo),
    Target(key="tiling.max_batch_size", sources=("max_batch_size", *SHAPE), make=max_batch_size),
    Target(key="resources.gpus", sources=(*RANKS, *SHAPE), make=gpus),
    fixed("resources.layout", "replicated"),
    Target(key="resources.time_min", sources=("slurm_time",), make=wall_time),
    copied("run.seed", "seed"),
    Target(key="run.measure", sources=("profiler_mode",), make=measure),
    Target(key="run.measure_warmup_steps", sources=("profiler_warmup",), make=measure_warmup),
    Target(key="run.measure_steps", sources=("profiler_active",), make=measure_steps),
)

INFERENCE = (
    fixed("algorithm.name", "pgd"),
    copied("algorithm.iterations", "max-runs"),
    Target(key="algorithm.step_size", sources=("step_size", "step_size_scale"), make=step_size),
    Target(key="algorithm.init", sources=("init_method",), make=init),
    Target(key="resources.compile", sources=("compile",), make=compiled),
)

TRAINING = (
    fixed("algorithm.name", "pgd"),
    copied("algorithm.iterations", "n_iter"),
    copied("algorithm.step_size", "init_stepsize"),
    Target(key="tiling.checkpoint", sources=("checkpoint_batches", *SHAPE), make=checkpoint),
    copied("train.steps", "max-runs"),
    copied("train.batch_size", "batch_size"),
    copied("train.images", "batch_size"),
    fixed("train.held_out", "1"),
    copied("train.learning_rate", "model_learning_rate"),
    Target(key="train.trainable", sources=("train_algo_params",), make=trainable),
)
