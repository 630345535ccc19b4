"""Files that a spec names: which of them exist. Used on the login node, before anything is submitted."""

from __future__ import annotations

from glob import glob, has_magic
from pathlib import Path

from dptrain.spec.build import WEIGHTS_WORDS
from dptrain.spec.schema import Denoiser, FileData, Spec


def expand_files(patterns: tuple[str, ...]) -> list[str]:
    """Every file of some paths and globs, sorted within each; folders do not count."""
    files: list[str] = []
    for pattern in patterns:
        matches = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]  # noqa: PTH207
        files += [match for match in matches if Path(match).is_file()]
    return files


def missing_files(spec: Spec) -> list[str]:
    """Paths that do not exist and globs that match nothing, as `key: path`; runs named as weights are not looked for."""
    named: list[tuple[str, tuple[str, ...] | None]] = []
    held_out = spec.train.held_out_data if spec.train is not None else None
    for key, data in (("problem.data", spec.problem.data), ("train.held_out_data", held_out)):
        if isinstance(data, FileData):
            named += [(f"{key}.truth", data.truth), (f"{key}.measurements", data.measurements)]
    if (
        isinstance(spec.denoiser, Denoiser)
        and spec.denoiser.weights not in WEIGHTS_WORDS
        and "/" in spec.denoiser.weights
        and not Path(spec.denoiser.weights).is_dir()  # a run by its directory
    ):
        named.append(("denoiser.weights", (spec.denoiser.weights,)))
    return [
        f"{key}: {pattern}" for key, patterns in named for pattern in patterns or () if not expand_files((pattern,))
    ]
