"""How far the denoiser sees, as the engine measured it: seconds in a process of its own, then an answer kept on disk.

Answers lie in `$XDG_CACHE_HOME/dptrain/receptive/`, by the content of what they depend on: network, weights, noise level, versions.
`measure` asks the engine where nobody has yet; `known` only looks, so that submitting waits for no torch.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dptrain.errors import DptrainError
from dptrain.plan import kept
from dptrain.plan.inputs import WEIGHT_SUFFIXES, weights_run
from dptrain.plan.user_code import factory_mark
from dptrain.records.process import program
from dptrain.spec.dump import plain
from dptrain.spec.load import dump_spec
from dptrain.spec.pretrained import pretrained_file
from dptrain.spec.schema import Denoiser, Factory, Spec

PROBE = "dptrain.engine.receptive"
KEPT = "receptive"
"""Folder of answers."""
LIMIT_S = 180.0
"""User code may hang; a 3-D network of 30 million parameters takes half a minute on one core."""


@dataclass(frozen=True, kw_only=True)
class Receptive:
    """What a denoiser sees and is."""

    radius: int | None
    """Pixels; outputs further away do not depend on an input. None: every output of `looked` pixels does."""
    looked: int
    """Pixels of the longest input."""
    effective_radius: int | None
    """Pixels; beyond it lies at most a thousandth of a gradient's mass. None: further than was looked, see `beyond`."""
    gain: float
    """Sum of |d output / d input| over the inputs of one output pixel."""
    beyond: tuple[float, ...]
    """Share of that further away than 0, 1, ... pixels along some axis."""
    statistics: tuple[str, ...]
    """Where it sees the whole image: modules that may be why, `GroupNorm (body.0.norm)`."""
    batch_norm: tuple[str, ...]
    """Batch normalisations: in training their statistics are those of the tiles of a call."""
    parameters: int
    flops_per_pixel: float
    """Of a forward pass over one image."""

    def to_json(self) -> dict[str, Any]:
        """For `plan --json`: all but the long list."""
        return {name: value for name, value in asdict(self).items() if name != "beyond"}

    def seam_error(self, halo: int) -> float:
        """About the largest difference, at a seam, between a tile and the network on the whole image (range [0, 1])."""
        return SEAM * self.gain * self.share_beyond(halo)

    def share_beyond(self, halo: int) -> float:
        """Share of the gradient's mass that a halo leaves out, at most."""
        if self.radius is not None and halo >= self.radius:
            return 0.0
        return self.beyond[min(halo, len(self.beyond) - 1)]


IDENTITY = Receptive(
    radius=0, looked=0, effective_radius=0, gain=1.0, beyond=(0.0,), statistics=(), batch_norm=(), parameters=0,
    flops_per_pixel=0.0,
)  # fmt: skip


_measured: dict[str, Receptive] = {}
"""By this process, where the cache cannot be written, or what the answer depends on cannot be read."""


SEAM = 0.1
"""Largest difference at a seam over gain x share beyond the halo: 0.03 to 0.3 in 14 cases with halos of 4 to 32 on a noisy
photograph (drunet builtin and random, dncnn, unet; mostly 0.03 to 0.1), where the root mean square along seams is a fifth of it."""


class NotMeasured(DptrainError):
    """The probe did not get to an answer; the message says why."""


def known(spec: Spec) -> Receptive | None:
    """What was measured of this denoiser before; None: nothing yet."""
    if isinstance(spec.denoiser, Denoiser) and spec.denoiser.name == "identity":
        return IDENTITY
    key = _key(spec)
    if key is None:  # what was measured a moment ago still holds
        return _measured.get(kept.name_of(_settings(spec)))
    return _measured.get(key) or _read(key)


def measure(spec: Spec) -> Receptive:
    """What is known, or else the engine's answer, which is then kept.

    :raises NotMeasured: missing weights, user code that fails here, no answer in time.
    """
    found = known(spec)
    if found is not None:
        return found
    command = program(PROBE)
    try:
        done = subprocess.run(
            command, input=dump_spec(spec), capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"the probe of the denoiser took more than {LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"{PROBE} ended with exit code {done.returncode}"]
        raise NotMeasured(said[-1])
    answer = _parsed(json.loads(done.stdout.strip().splitlines()[-1]))
    key = _key(spec)
    _measured[key or kept.name_of(_settings(spec))] = answer
    if key is not None:
        kept.keep(KEPT, key, asdict(answer))
    return answer


def _parsed(value: Mapping[str, Any]) -> Receptive:
    found = {f.name: value[f.name] for f in fields(Receptive)}
    listed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
    return Receptive(**listed)


def _read(key: str) -> Receptive | None:
    answer = kept.read(KEPT, key)
    return None if answer is None else _parsed(answer)


def _key(spec: Spec) -> str | None:
    """A name for what the answer depends on; None where that cannot be read here."""
    try:
        return kept.name_of([_settings(spec), weights_mark(spec)])
    except OSError:
        return None


def _settings(spec: Spec) -> dict[str, Any]:
    """What the answer depends on beside weights and user code."""
    return {
        "denoiser": plain(spec.denoiser),
        "axes": len(spec.problem.image_size),
        "channels": spec.problem.channels,
        "sigma": spec.algorithm.sigma if spec.algorithm.sigma != "noise" else plain(spec.problem.physics),
        "seed": spec.run.seed if _is_drawn(spec) else None,
        "versions": {name: version(name) for name in ("torch", "deepinv", "dptrain")},
    }


def _is_drawn(spec: Spec) -> bool:
    return isinstance(spec.denoiser, Factory) or spec.denoiser.weights == "random"


def weights_file(spec: Spec) -> Path | None:
    """The file behind `denoiser.weights` where it is a file, a run or a download; None where it is none.

    :raises OSError: a run without a save.
    """
    denoiser = spec.denoiser
    if isinstance(denoiser, Factory) or denoiser.name == "identity":
        return None
    run = weights_run(spec)
    if run is not None:
        steps = [int(p.name[5:]) for p in run.saves.glob("step-*") if p.name[5:].isdigit()]
        if not steps:
            raise FileNotFoundError(run.saves)
        return run.save(max(steps)) / "model.safetensors"
    if denoiser.weights == "pretrained":
        return pretrained_file(spec)
    return Path(denoiser.weights) if Path(denoiser.weights).suffix in WEIGHT_SUFFIXES else None


def weights_mark(spec: Spec) -> list[Any]:
    """Size and time of a weights file; the code of a factory and the files that it is given."""
    if isinstance(spec.denoiser, Factory):
        return factory_mark(spec.denoiser)
    file = weights_file(spec)
    if file is None:
        return []
    stat = file.stat()
    return [str(file.absolute()), stat.st_size, stat.st_mtime_ns]
