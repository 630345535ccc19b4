"""Weights of a denoiser: finding the file, reading it, and saying which network it fits.

Files are safetensors, or .pth read in torch's restricted mode. A save of a training run holds `denoiser.<tensor>` beside the
algorithm's own parameters `step_size` and `sigma`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from dptrain.errors import PlanRefused, UsageError
from dptrain.records.index import resolve_run
from dptrain.records.paths import RunPaths
from dptrain.spec.pretrained import pretrained_file, require_pretrained
from dptrain.spec.schema import Denoiser, Spec

StateDict = dict[str, Tensor]
PREFIX = "denoiser."
ALGORITHM_PARAMETERS = ("step_size", "sigma")
SAVED_MODEL = "model.safetensors"
FILE_SUFFIXES = (".safetensors", ".pth", ".pt")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the shapes of a state dict say of its network; None where it does not apply."""

    name: str
    dim: int
    channels: int
    nc: tuple[int, ...] | None = None
    nb: int | None = None
    depth: int | None = None
    width: int | None = None
    scales: int | None = None
    batch_norm: bool = False
    bias: bool = True


def locate(spec: Spec) -> Path:
    """The file of `denoiser.weights`, for every value but `random`."""
    denoiser = spec.denoiser
    assert isinstance(denoiser, Denoiser)
    if denoiser.weights == "builtin":
        return builtin_file(denoiser.name, len(spec.problem.image_size), spec.problem.channels)
    if denoiser.weights == "pretrained":
        require_pretrained(spec)
        path = pretrained_file(spec)
        assert path is not None
        return path
    return weights_file(denoiser.weights)


def builtin_file(name: str, dim: int, channels: int) -> Path:
    """The weights shipped with dptrain."""
    kinds = {1: "gray", 3: "color"}
    if name != "drunet" or dim != 2 or channels not in kinds:
        raise UsageError(
            f"denoiser.weights: builtin is a 2-D drunet with 1 or 3 channels; asked for {name}, {dim}-D, {channels} channels\n"
            "    write: weights: random, pretrained, a file, or a run"
        )
    return Path(str(resources.files("dptrain.templates") / "weights" / f"drunet-{kinds[channels]}.safetensors"))


def weights_file(weights: str) -> Path:
    """The file of a path, or of a run: its newest save."""
    path = Path(weights).expanduser()
    if path.suffix in FILE_SUFFIXES:
        if not path.is_file():
            raise UsageError(f"denoiser.weights: no file {path}")
        return path
    return newest_model(resolve_run(weights))


def newest_model(run: RunPaths) -> Path:
    """The model of a run's newest save; a save is complete or absent."""
    steps = [int(p.name[5:]) for p in run.saves.glob("step-*") if p.name[5:].isdigit() and (p / SAVED_MODEL).is_file()]
    if not steps:
        raise UsageError(f"denoiser.weights: run {run.run_id} has no save (looked in {run.saves})")
    return run.save(max(steps)) / SAVED_MODEL


def load_run_parameters(weights: str) -> dict[str, Tensor] | None:
    """`step_size` and `sigma` (K values each) that a training run saved beside its denoiser; None where `weights` names no run."""
    if weights in ("builtin", "pretrained", "random"):
        return None
    tensors = read_tensors(weights_file(weights))
    found = {name: tensors[name] for name in ALGORITHM_PARAMETERS if name in tensors}
    return found or None


def read_state_dict(path: Path) -> StateDict:
    """The denoiser's tensors in a file, on the CPU."""
    tensors = read_tensors(path)
    if any(name.startswith(PREFIX) for name in tensors):
        return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    return tensors


def read_tensors(path: Path) -> StateDict:
    """Every tensor of a .safetensors or .pth file."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt", device="cpu") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of other bytes makes torch's restricted reader fail in any way at all
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"denoiser.weights: {path} is not a readable file of tensors ({reason})") from None
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UsageError(f"denoiser.weights: {path} holds no state dict (names with tensors)")
    return loaded


def architecture_of(name: str, tensors: StateDict, path: Path) -> Architecture:
    """Read the architecture from the tensors' shapes.

    :param name: the denoiser that the spec asks for.
    """
    readers = {"drunet": _drunet, "dncnn": _dncnn, "unet": _unet}
    try:
        return readers[name](tensors)
    except KeyError as missing:
        names = sorted(tensors)
        raise UsageError(
            f"denoiser.weights: {path} does not hold a {name}: no tensor {missing.args[0]!r}; it has {', '.join(names[:3])}"
            + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        ) from None


def _count(tensors: StateDict, form: str) -> int:
    """How many of form % 0, form % 1, ... there are."""
    n = 0
    while form % n in tensors:
        n += 1
    return n


def _drunet(tensors: StateDict) -> Architecture:
    head = tensors["m_head.weight"]
    nb = max(1, _count(tensors, "m_body.%d.res.0.weight"))
    scales = [tensors[f"m_down{scale}.{nb}.weight"].shape[0] for scale in (1, 2, 3)]
    return Architecture(
        name="drunet", dim=head.ndim - 2, channels=head.shape[1] - 1, nc=(head.shape[0], *scales), nb=nb
    )


def _dncnn(tensors: StateDict) -> Architecture:
    first = tensors["in_conv.weight"]
    return Architecture(
        name="dncnn",
        dim=first.ndim - 2,
        channels=first.shape[1],
        depth=_count(tensors, "conv_list.%d.weight") + 2,
        width=first.shape[0],
        bias="in_conv.bias" in tensors,
    )


def _unet(tensors: StateDict) -> Architecture:
    first = tensors["Conv1.0.weight"]
    return Architecture(
        name="unet",
        dim=first.ndim - 2,
        channels=first.shape[1],
        scales=max(n for n in range(2, 16) if f"Conv{n}.0.weight" in tensors or n == 2),
        batch_norm=any(name.endswith("running_mean") for name in tensors),
        bias="Conv1.0.bias" in tensors,
    )


def check(found: Architecture, spec: Spec, path: Path) -> None:
    """Raise UsageError where a file's network is not the one that the spec spells out."""
    denoiser = spec.denoiser
    assert isinstance(denoiser, Denoiser)
    wanted: dict[str, object] = {"dim": len(spec.problem.image_size), "channels": spec.problem.channels}
    wanted |= {key: getattr(denoiser, key) for key in ("nc", "nb", "depth", "width", "scales")}
    for key, want in wanted.items():
        have = getattr(found, key)
        if want is not None and have is not None and have != want:
            where = {"dim": "problem.image_size", "channels": "problem.channels"}.get(key, f"denoiser.{key}")
            raise UsageError(
                f"denoiser.weights: {path} is a {found.name} with {key} {_plain(have)}; {where} asks for {_plain(want)}"
            )


def _plain(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def load_into(model: torch.nn.Module, tensors: StateDict, path: Path) -> None:
    """Load all tensors, refusing missing, unknown and differently shaped ones by name."""
    own = model.state_dict()
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is unknown" for name in tensors if name not in own]
    wrong += [
        f"{name} has shape {list(tensor.shape)}, the network {list(own[name].shape)}"
        for name, tensor in tensors.items()
        if name in own and tensor.shape != own[name].shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UsageError(f"denoiser.weights: {path} does not fit {type(model).__name__}: {'; '.join(wrong[:3])}{more}")
    model.load_state_dict(tensors, strict=True)


def fetch_pretrained(spec: Spec) -> Path | None:
    """Download what `weights: pretrained` needs, once, where `plan` and the ranks look for it; None where nothing is needed."""
    from deepinv.models.utils import get_weights_url, load_state_dict_from_url
    from deepinv.utils import DownloadError

    path = pretrained_file(spec)
    if path is None or path.is_file():
        return path
    assert isinstance(spec.denoiser, Denoiser)
    url = get_weights_url(model_name=spec.denoiser.name, file_name=path.name)
    try:
        load_state_dict_from_url(
            url, model_dir=str(path.parent), map_location="cpu", file_name=path.name, progress=False, weights_only=True
        )
    except (DownloadError, OSError) as error:
        raise PlanRefused(
            f"denoiser.weights: pretrained: cannot fetch {url} ({error})\n    write: that file to {path} by other means"
        ) from None
    return path
