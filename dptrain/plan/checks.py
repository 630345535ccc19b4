"""What plan refuses before the queue: requests that cannot work, files that are not there, steps that diverge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dptrain.plan.inputs import learned_iterations, weights_run, wrong_files
from dptrain.plan.norm import NoNorm, operator_norm_sq
from dptrain.spec.advice import fewer_images
from dptrain.spec.files import expand_files, missing_files
from dptrain.spec.pretrained import pretrained_file
from dptrain.spec.schema import (
    PROXIMAL,
    Data,
    Denoiser,
    Factory,
    FileData,
    MultiframeSuperres,
    SourceData,
    Spec,
    Task,
)


def operators(spec: Spec) -> int | None:
    """Number of operators of the stack; None for user code."""
    physics = spec.problem.physics
    if isinstance(physics, Factory):
        return None
    return physics.frames if isinstance(physics, MultiframeSuperres) else 1


def files_of(data: Data) -> list[Path]:
    """Files behind the patterns of a file source, each once; of the truth, or of the measurements where there is no truth."""
    if not isinstance(data, FileData):
        return []
    return list(dict.fromkeys(Path(p) for p in expand_files(data.measurements or data.truth or ())))


def image_count(spec: Spec, task: Task) -> int:
    """Images of a run: files, or one. User code says on the ranks how many it has; until then it counts as one."""
    return max(1, len(files_of(spec.problem.data))) if task == "infer" else 1


def refusals(spec: Spec, task: Task) -> Iterator[str]:
    """One sentence per reason why the run cannot work."""
    yield from _ranks(spec, task)
    yield from _files(spec)
    yield from _weights(spec)
    yield from _step_size(spec)
    if task == "train" and spec.train is None:
        yield "the spec has no train section; write: train: {steps: 100}"
    yield from _images(spec, task)
    if task == "train" and isinstance(spec.problem.data, FileData) and spec.problem.data.truth is None:
        yield "problem.data.truth is null: training needs the truth"


def _images(spec: Spec, task: Task) -> Iterator[str]:
    """Enough images to train on; user code says on the ranks how many it has, synthetic data has any number."""
    train = spec.train
    if task != "train" or train is None:
        return
    own = train.held_out_data is not None
    wanted = [("problem.data", spec.problem.data, train.images + (0 if own else train.held_out))]
    if train.held_out_data is not None:
        wanted.append(("train.held_out_data", train.held_out_data, train.held_out))
    for where, data, count in wanted:
        if isinstance(data, SourceData):
            have = 1 if data.source == "photo" else count
        elif isinstance(data, FileData):
            have = len(files_of(data))
        else:
            have = count
        if 0 < have < count:
            yield (
                f"{where}: {have} image{'s' * (have != 1)}, training asks for {count} (train.images, and train.held_out after "
                f"them); write: {fewer_images(train, spec.resources.replicas, have, where)}"
            )


def _ranks(spec: Spec, task: Task) -> Iterator[str]:
    count, ranks, replicas = operators(spec), spec.resources.gpus, spec.resources.replicas
    if spec.tiling.patch == "none" and spec.resources.ranks_per_replica > 1:
        yield f"tiling.patch is none, the untiled single process, but resources.gpus is {ranks}; write: gpus: {replicas}"
    if task == "infer" and replicas > 1:
        yield (
            f"resources.replicas is {replicas}: replicas train on images of their own, a reconstruction has none; write: "
            f"resources.replicas=1 for all {ranks} ranks on every image"
        )
    replicated = spec.resources.layout == "replicated"
    if replicated and spec.resources.precision == "float64" and count is not None and ranks > count:
        # deepinv 0.5 sums float32 zeros of a rank without operators into float64 and aborts.
        yield (
            f"layout replicated in float64 needs ranks <= operators: resources.gpus {ranks} > {count} operators; write: "
            f"resources.layout=sharded, resources.gpus={count} or resources.precision=float32"
        )


def _files(spec: Spec) -> Iterator[str]:
    for missing in missing_files(spec):
        yield f"no file matches {missing}"
    yield from wrong_files(spec)


def _weights(spec: Spec) -> Iterator[str]:
    if isinstance(spec.denoiser, Denoiser) and spec.denoiser.weights == "pretrained":
        file = pretrained_file(spec)
        if file is not None and not file.is_file():
            yield f"pretrained weights are missing where compute nodes look: {file}; write: dptrain prepare SPEC"
    run = weights_run(spec)
    if run is None:
        return
    if not any(run.saves.glob("step-*")):
        yield f"denoiser.weights: run {run.run_id} has no save yet"
    learned = learned_iterations(run)
    if learned is not None and learned != spec.algorithm.iterations:
        yield (
            f"denoiser.weights: run {run.run_id} learned step sizes for {learned} unrolled steps, algorithm.iterations is "
            f"{spec.algorithm.iterations}; write: --set algorithm.iterations={learned}, or the path of the save's model.safetensors "
            "for the denoiser alone"
        )


def _step_size(spec: Spec) -> Iterator[str]:
    """gamma below 2 / ||A||^2."""
    gamma, norm_sq = spec.algorithm.step_size, _norm_sq(spec)
    if gamma != "auto" and isinstance(norm_sq, float) and gamma >= 2 / norm_sq:
        yield f"algorithm.step_size {gamma:g} >= 2 / ||A||^2 = {2 / norm_sq:.4g} (||A||^2 = {norm_sq:.4g}): the iteration diverges"


def step_size_notes(spec: Spec) -> list[str]:
    """What plan could not check, and why."""
    reason = _norm_sq(spec)
    if not isinstance(reason, str):
        return []
    return [f"algorithm.step_size is not checked here, the ranks do it before the first step: {reason}"]


def _norm_sq(spec: Spec) -> float | str | None:
    """||A||^2, or why plan has no answer; None where a step needs none, or the ranks measure it."""
    if spec.algorithm.step_size == "auto" or spec.algorithm.name in PROXIMAL:
        return None
    try:
        return operator_norm_sq(spec)
    except NoNorm as error:
        return str(error)
