"""An experiment file, and optionally a parallel-config -> the tree of a spec with a sweep, and of a cluster profile.

The tree keeps the positions of the file that it was made from, so that everything that the spec's own reader refuses is refused with
file:line:col of the experiment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dptrain.spec.benchopt.cluster import Parallel, add_setting, is_setting, profile_tree, read_parallel
from dptrain.spec.benchopt.grid import Grid, combinations, make_grid
from dptrain.spec.benchopt.known import DATA, DATASETS, MAX_RUNS, OPERATORS, SOLVERS, Dataset, Solver
from dptrain.spec.benchopt.reader import Axis, Experiment, last_wins, read_experiment
from dptrain.spec.benchopt.remarks import Notes, Remark
from dptrain.spec.benchopt.targets import RANKS, placement
from dptrain.spec.benchopt.values import is_none, word
from dptrain.spec.benchopt.writing import yaml_text
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.constraints import NAME
from dptrain.spec.load import LoadedSpec, as_table, load_tree, read_file
from dptrain.spec.profiles import build_profile
from dptrain.spec.tree import (
    Entry,
    Items,
    Node,
    Scalar,
    Source,
    Table,
    Where,
    raise_found,
    read_bytes,
    read_tree,
    shown,
)

ORDER = ("problem", "denoiser", "algorithm", "tiling", "resources", "train", "run")
NOTHING = {"n-repetitions": "1", "batch_size": "1"}
"""Values that ask for nothing: what every run does."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A spec made from an experiment file."""

    spec: Table
    path: Path
    remarks: tuple[Remark, ...]
    profile: Table | None = None
    """The cluster profile of the parallel-config."""
    profile_name: str | None = None

    @property
    def unmapped(self) -> list[dict[str, Any]]:
        """What the spec does not have, as JSON."""
        return [remark.to_json() for remark in self.remarks if not remark.mapped]

    @property
    def name(self) -> str:
        """That of the file, as far as it is one."""
        return plain_name(self.path)

    def without_cluster(self) -> Converted:
        """For another cluster than that of the parallel-config."""
        return replace(self, profile=None, profile_name=None)

    def load(self, overrides: Sequence[str] = ()) -> LoadedSpec:
        """The spec, judged as any other. Raises SpecError."""
        return load_tree(self._tree(self.name), self.path, overrides)

    def spec_text(self, name: str | None = None) -> str:
        """The spec as a file."""
        title = f"Made from the benchopt experiment {self.path.name}."
        return yaml_text(self._tree(name or self.name), title, self.remarks)

    @property
    def own_profile(self) -> ClusterProfile | None:
        """The profile of the parallel-config, where there is one; it need not be a file yet."""
        return None if self.profile is None else build_profile(self.profile, self.profile_name or self.name)

    def profile_text(self) -> str:
        """The profile as a file."""
        assert self.profile is not None
        return yaml_text(self.profile, "Made from a benchopt parallel-config. gpu_memory_gib is not known from it.", ())

    def _tree(self, name: str) -> Table:
        where = self.spec.where
        own = {"name": Entry(where, word(name, where))}
        if self.profile_name is not None:
            own["cluster"] = Entry(where, word(self.profile_name, where))
        return Table({**own, **self.spec.entries}, where)


def convert(path: Path, parallel_config: Path | None = None) -> Converted:
    """Read the files. Raises SpecError with everything for which there is no run."""
    notes = Notes()
    parallel = read_parallel(_read(parallel_config, "a parallel-config"), notes) if parallel_config else None
    root = _read(path, "an experiment file")
    experiment = read_experiment(root, notes)
    raise_found(notes.found)
    assert experiment is not None
    dataset, solver = _known(experiment, notes)
    axes = _all_axes(experiment, solver, dataset, parallel, notes)
    grid = make_grid(axes, solver.targets, experiment.solver.where, notes)
    raise_found(notes.found)
    assert grid is not None
    notes.choice("dataset", word(experiment.dataset.name, experiment.dataset.where), dataset.differs)
    if "train.held_out" in grid.base and dataset.one_image:
        grid = replace(grid, base={**grid.base, "train.held_out": word(0, experiment.dataset.where)})
        notes.choice(
            "dataset",
            word(experiment.dataset.name, experiment.dataset.where),
            "its one image is trained on, so that none is held out: train.held_out: 0",
        )
    notes.choice(
        "solver",
        word(experiment.solver.name, experiment.solver.where),
        "layout: replicated is deepinv.distributed, as the benchmark has it; sharded gives its answer with less memory",
    )
    profile = _profile(axes, parallel, parallel_config, experiment, notes)
    name = plain_name(parallel_config) if profile is not None and parallel_config is not None else None
    return Converted(
        spec=_spec_tree(grid, dataset, experiment),
        path=path.absolute(),
        remarks=tuple(notes.remarks),
        profile=profile,
        profile_name="local" if parallel is not None and parallel.local else name,
    )


def plain_name(path: Path) -> str:
    """A name from that of a file."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")[:64]
    return text if NAME.complaint(text) is None else "benchopt"


def _read(path: Path, what: str) -> Table:
    source = Source(label=str(path), folder=path.parent.absolute())
    node, found = read_tree(read_bytes(read_file(path), source), source)
    raise_found(found)
    return as_table(node, source, what, "dataset: [...]")


def _known(experiment: Experiment, notes: Notes) -> tuple[Dataset, Solver]:
    """The counterparts of the dataset and the solver."""
    dataset = DATASETS.get(experiment.dataset.name.lower())
    solver = SOLVERS.get(experiment.solver.name.lower())
    if dataset is None:
        found = f"dataset {experiment.dataset.name} has no counterpart; there are: {', '.join(DATASETS)}"
        notes.problem(experiment.dataset.where, found, "one of them, or a spec of your own with physics of a factory")
    if solver is None:
        found = f"solver {experiment.solver.name} has no counterpart; there are: PnP, UnrolledPnP"
        notes.problem(experiment.solver.where, found, "one of them")
    raise_found(notes.found)
    assert dataset is not None and solver is not None
    return dataset, solver


def _all_axes(
    experiment: Experiment, solver: Solver, dataset: Dataset, parallel: Parallel | None, notes: Notes
) -> list[Axis]:
    """The axes of the file that a target reads, then the defaults; everything else is noted."""
    consumed = {key for target in solver.targets for key in target.sources}
    own = [axis for axis in experiment.solver.axes if not _asks_nothing(axis)]
    own = _without_settings(own, parallel, notes)
    axes = last_wins([*(parallel.axes if parallel else ()), *experiment.dataset.axes, *own], notes)
    for axis in axes:
        for i, key in enumerate(axis.keys):
            values = [row[i] for row in axis.rows]
            if key not in consumed and any(NOTHING.get(key) != shown(value) for value in values):
                notes.unmapped(
                    f"{axis.section}.{key}", values[0] if len(values) == 1 else Items(tuple(values), axis.where)
                )
    where = experiment.solver.where
    max_runs = experiment.options.get("max-runs")
    _options(experiment.options, notes)
    if max_runs is not None and not is_none(max_runs.value):
        axes.append(Axis(section="", keys=("max-runs",), rows=((max_runs.value,),), where=max_runs.where))
    defaults = {**DATA, **solver.defaults, "image_size": dataset.image_size, "max-runs": MAX_RUNS}
    given = {key for axis in axes for key in axis.keys}
    missing: dict[str, tuple[str, ...]] = {k: (v,) for k, v in defaults.items() if k in consumed and k not in given}
    if "num_operators" not in given:
        missing["num_operators"] = OPERATORS
    axes += [_default(key, values, where) for key, values in missing.items()]
    said = ", ".join(f"{k}={' | '.join(v)}" for k, v in missing.items() if k not in RANKS)
    if said:
        notes.choice("defaults", word(experiment.solver.name, where), f"what the file leaves out is as there: {said}")
    return axes


def _default(key: str, values: Sequence[str], where: Where) -> Axis:
    return Axis(section="defaults", keys=(key,), rows=tuple((word(v, where),) for v in values), where=where)


def _asks_nothing(axis: Axis) -> bool:
    """`image_size: null` of a solver: that of the dataset."""
    return axis.keys == ("image_size",) and all(is_none(row[0]) for row in axis.rows)


def _options(options: Mapping[str, Entry], notes: Notes) -> None:
    for key, entry in options.items():
        if key != "max-runs" and NOTHING.get(key) != shown(entry.value):
            notes.unmapped(key, entry.value)


def _without_settings(axes: Sequence[Axis], parallel: Parallel | None, notes: Notes) -> list[Axis]:
    """The axes without what a solver says of the cluster, e.g. `slurm_qos`: one value of it goes to the profile."""
    kept = []
    for axis in axes:
        key = axis.keys[0]
        name = key.removeprefix("slurm_")
        if len(axis.keys) > 1 or name == key or not is_setting(name):
            kept.append(axis)
        elif parallel is None or len(axis.rows) > 1:
            notes.unmapped(
                f"solver.{key}", axis.rows[0][0], "belongs to a cluster profile, which all runs of a sweep share"
            )
        elif not is_none(axis.rows[0][0]):
            add_setting(parallel.settings, name, Entry(axis.where, axis.rows[0][0]), notes)
    return kept


def _spec_tree(grid: Grid, dataset: Dataset, experiment: Experiment) -> Table:
    where = experiment.dataset.where
    values = {**grid.base, "problem.data.source": word(dataset.source, where)}
    for line in grid.lines:
        # The spec without its sweep is one of the runs. Where images and volumes are mixed, it is one of those that take every key.
        flat = [p for p in line.points if any(isinstance(n, Scalar) and n.text == "multiframe_superres" for n in p)]
        values.update(zip(line.keys, (flat or line.points)[0], strict=True))
    tree = Table({}, where)
    for section in ORDER:
        for key, node in values.items():
            if key.split(".")[0] == section:
                tree = _put(tree, key.split("."), node)
    if grid.lines:
        lines = {
            ", ".join(line.keys): Entry(line.where, _items(line.keys, line.points, line.where)) for line in grid.lines
        }
        tree = tree.with_entry("sweep", Entry(where, Table(lines, where)))
    return tree


def _items(keys: Sequence[str], points: Sequence[tuple[Node, ...]], where: Where) -> Items:
    if len(keys) == 1:
        return Items(tuple(point[0] for point in points), where)
    return Items(tuple(Items(point, point[0].where) for point in points), where)


def _put(table: Table, path: Sequence[str], node: Node) -> Table:
    if len(path) == 1:
        return table.with_entry(path[0], Entry(node.where, node))
    old = table.entries.get(path[0])
    inside = old.value if old is not None and isinstance(old.value, Table) else Table({}, node.where)
    return table.with_entry(path[0], Entry(inside.where, _put(inside, path[1:], node)))


def _profile(
    axes: Sequence[Axis], parallel: Parallel | None, path: Path | None, experiment: Experiment, notes: Notes
) -> Table | None:
    """The cluster profile; nodes are as full as the fullest of the file."""
    rows = combinations(axes, RANKS, experiment.solver.where, notes)
    placed = {(*placement(row), row["slurm_nodes"]) for _, row in rows}
    most = max(each for _, each, _ in placed)
    if parallel is None or parallel.local or path is None:
        return None
    for nodes, each, node in sorted(placed, key=lambda p: p[:2]):
        if -(-nodes * each // most) != nodes:
            notes.choice("solver.slurm_nodes", node, f"{nodes} x {each} ranks go on the fewest nodes of {most}")
    where = Where(Source(label=str(path), folder=path.parent.absolute()), 1, 1)
    tree = profile_tree(parallel.settings, most, where)
    build_profile(tree, plain_name(path))
    return tree
