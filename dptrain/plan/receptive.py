"""How far the denoiser sees, as the engine measured it: seconds in a process of its own, then an answer kept on disk.

Answers lie in `$XDG_CACHE_HOME/dptrain/receptive/`, by the content of what they depend on: network, weights, noise level, versions.
`measure` asks the engine where nobody has yet; `known` only looks, so that submitting waits for no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, fields
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dptrain.errors import DptrainError
from dptrain.plan.inputs import WEIGHT_SUFFIXES, weights_run
from dptrain.records.process import program
from dptrain.spec.dump import plain
from dptrain.spec.load import dump_spec
from dptrain.spec.pretrained import pretrained_file
from dptrain.spec.schema import Denoiser, Factory, Spec

PROBE = "dptrain.engine.receptive"
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
"""By this process, where the cache cannot be written."""


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
    return None if key is None else _measured.get(key) or _read(key)


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
    answer = _parsed(done.stdout.strip().splitlines()[-1])
    key = _key(spec)
    if key is not None:
        _measured[key] = answer
        _write(_file(key), answer)
    return answer


def _parsed(text: str) -> Receptive:
    value: dict[str, Any] = json.loads(text)
    kept = {f.name: value[f.name] for f in fields(Receptive)}
    listed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
    return Receptive(**listed)


def _file(key: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dptrain" / "receptive" / f"{key}.json"


def _read(key: str) -> Receptive | None:
    try:
        return _parsed(_file(key).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError):  # none, or not one of ours: it is measured again
        return None


def _write(path: Path, answer: Receptive) -> None:
    # A home that cannot be written costs the same seconds next time, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(asdict(answer)) + "\n", encoding="utf-8")
        beside.replace(path)


def _key(spec: Spec) -> str | None:
    """A hash of what the answer depends on; None where that cannot be read here."""
    try:
        content = {
            "denoiser": plain(spec.denoiser),
            "weights": weights_mark(spec),
            "axes": len(spec.problem.image_size),
            "channels": spec.problem.channels,
            "sigma": spec.algorithm.sigma if spec.algorithm.sigma != "noise" else plain(spec.problem.physics),
            "seed": spec.run.seed if _is_drawn(spec) else None,
            "versions": {name: version(name) for name in ("torch", "deepinv", "dptrain")},
        }
    except OSError:
        return None
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


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
    """Size and time of a weights file; the bytes of a user's module."""
    if isinstance(spec.denoiser, Factory):
        return [module_hash(spec.denoiser.factory, spec.denoiser.search_path)]
    file = weights_file(spec)
    if file is None:
        return []
    stat = file.stat()
    return [str(file.absolute()), stat.st_size, stat.st_mtime_ns]


def module_hash(factory: str, search_path: str | None) -> str:
    """Of the source files of the top-level module or package. Raises OSError where there are none."""
    top = factory.split(":")[0].split(".")[0]
    found = PathFinder.find_spec(top, [*([search_path] if search_path else []), *sys.path])
    if found is None or found.origin is None:
        raise FileNotFoundError(top)
    origin = Path(found.origin)
    files = sorted(origin.parent.rglob("*.py")) if found.submodule_search_locations else [origin]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
