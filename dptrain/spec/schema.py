"""What a user can ask for: one frozen class per YAML section, a docstring under every field.

A field's docstring gives its unit, its legal values and what a sentinel means. `load.py` builds these objects and refuses
everything else; nothing outside `spec/` parses YAML values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from dptrain.spec.constraints import FACTORY, NAME, FilePath, Length, Limits, Minutes

Task = Literal["train", "infer"]
Layout = Literal["replicated", "sharded"]
Checkpoint = Literal["fit", "auto", "always", "never", "stages"]

Count = Annotated[int, Limits(at_least=1)]
CountOrZero = Annotated[int, Limits(at_least=0)]
Positive = Annotated[float, Limits(above=0)]
BlurSigma = Annotated[tuple[Positive, ...], Length(at_most=2, bare=True, says="one number, or two: [major, minor]")]
NoiseStd = Annotated[
    tuple[Annotated[float, Limits(at_least=0)], ...],
    Length(at_most=2, bare=True, says="one number, or two: [lowest, highest]"),
]
Files = Annotated[
    tuple[Annotated[str, FilePath(glob=True)], ...], Length(bare=True, says="a path or glob, or a list of them")
]


@dataclass(frozen=True, kw_only=True)
class Factory:
    """User code named by the spec: `{factory: "module:function", ...arguments}`; used for physics, data and denoiser."""

    factory: Annotated[str, FACTORY]
    """`module:function`, imported on the ranks with the spec file's folder first on `sys.path`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Every other key of the mapping, passed to the function as keyword arguments."""
    search_path: Annotated[str, FilePath()] | None = None
    """Absolute folder put first on `sys.path`. Default: the folder of the spec file; the loader writes it out."""


@dataclass(frozen=True, kw_only=True)
class MultiframeSuperres:
    """N Gaussian blurs at angles 180 i/N degrees (5 x 5, circular boundary), each then decimated; operators are summed. 2-D only."""

    name: Literal["multiframe_superres"] = "multiframe_superres"
    frames: Count = 4
    """Number of operators, at least 1."""
    factor: Count = 2
    """Decimation along every spatial axis, at least 1; must divide every axis of `image_size`."""
    blur_sigma: BlurSigma = (1.0,)
    """Standard deviation in pixels, above 0: one number, or two for an anisotropic kernel (major, minor axis)."""
    noise_std: NoiseStd = (0.05,)
    """Standard deviation of the Gaussian noise, at least 0, image range [0, 1]; two numbers: drawn per image uniformly between them."""


@dataclass(frozen=True, kw_only=True)
class Deblur:
    """One Gaussian blur with circular boundary."""

    name: Literal["deblur"] = "deblur"
    blur_sigma: BlurSigma = (2.0,)
    """Standard deviation in pixels, above 0: one number, or two for an anisotropic kernel (2-D only)."""
    noise_std: NoiseStd = (0.02,)
    """As in `multiframe_superres`."""


@dataclass(frozen=True, kw_only=True)
class Denoise:
    """Identity operator with Gaussian noise."""

    name: Literal["denoise"] = "denoise"
    noise_std: NoiseStd = (0.1,)
    """As in `multiframe_superres`."""


@dataclass(frozen=True, kw_only=True)
class Inpaint:
    """A random pixel mask, the same for every channel, drawn from `run.seed`."""

    name: Literal["inpaint"] = "inpaint"
    keep: Annotated[float, Limits(above=0, at_most=1)] = 0.5
    """Fraction of pixels measured, above 0 and at most 1."""
    noise_std: NoiseStd = (0.02,)
    """As in `multiframe_superres`."""


Physics = MultiframeSuperres | Deblur | Denoise | Inpaint | Factory


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """Images that need no file."""

    source: Literal["photo", "synthetic"] = "photo"
    """`photo`: the photograph matplotlib ships, resized to `image_size` (2-D). `synthetic`: dead leaves, 2-D or 3-D, any size."""


@dataclass(frozen=True, kw_only=True)
class FileData:
    """Image files; the truth (measurements are simulated), or measurements with or without truth."""

    truth: Files | None = None
    """Paths or globs (PNG, JPEG, TIFF 8/16 bit, NPY), relative to the spec file; sorted. null: no truth, PSNR is absent."""
    measurements: Files | None = None
    """Paths or globs of NPY files in the physics' measurement shape, one file per image: an array whose first axis counts the
    operators when there is more than one (shape (operators, channels, ...)). Absent: measurements are simulated from the truth."""
    range: tuple[float, float] | None = None
    """(low, high) of the file's values, mapped to [0, 1]. Default: the integer type's full range; floating point unchanged."""
    crop: Literal["none", "center", "random"] = "none"
    """What to do with a truth larger than `image_size`: refuse it, take its centre, or a random window drawn from seed and index."""


Data = SourceData | FileData | Factory


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is measured, and of what."""

    image_size: Annotated[tuple[Count, ...], Length(at_least=2, at_most=3, says="[H, W] or [D, H, W]")] = (512, 512)
    """Pixels: (H, W), or (D, H, W) for a volume."""
    channels: Count = 3
    """Channels of the image: any number of at least 1; colour images have 3, gray ones 1."""
    physics: Physics = field(default_factory=MultiframeSuperres)
    data: Data = field(default_factory=SourceData)


@dataclass(frozen=True, kw_only=True)
class Denoiser:
    """The network inside the algorithm."""

    name: Literal["drunet", "dncnn", "unet", "identity"] = "drunet"
    weights: Annotated[str, FilePath(if_like_path=True)] = "builtin"
    """`builtin` (shipped with dptrain; drunet, 1 or 3 channels, 2-D), `pretrained` (deepinv's download, see `dptrain prepare`),
    `random` (deepinv's initialisation from `run.seed`), a path (.safetensors, or .pth read in torch's restricted mode), or a run
    (id, directory, or unique prefix) that trained them."""
    init: Literal["default", "passthrough"] = "default"
    """For `weights: random`: deepinv's own initialisation, or (drunet, dncnn) one that starts as the identity, which trains faster.
    Not read with weights of a file or run, so that a training spec can be used with what it trained."""
    nc: Annotated[tuple[Count, ...], Length(at_least=4, at_most=4, says="four whole numbers")] | None = None
    """drunet: channels of its four scales. Default: deepinv's (64, 128, 256, 512), or what the weights have."""
    nb: Count | None = None
    """drunet: residual blocks per scale. Default: deepinv's 4, or what the weights have."""
    depth: Annotated[int, Limits(at_least=2)] | None = None
    """dncnn: number of layers (deepinv's default: 20)."""
    width: Count | None = None
    """dncnn: channels per layer (deepinv's `nf`, default: 64)."""
    scales: Annotated[int, Limits(at_least=2, at_most=8)] | None = None
    """unet: number of scales, 2 to 8 (deepinv's default: 4)."""


DENOISER_KEYS: Mapping[str, tuple[str, ...]] = {
    "drunet": ("name", "weights", "init", "nc", "nb"),
    "dncnn": ("name", "weights", "init", "depth", "width"),
    "unet": ("name", "weights", "scales"),
    "identity": ("name",),
}
"""Keys that each denoiser takes; the others keep their defaults and are not read."""

PROXIMAL = ("drs", "admm", "hqs")
"""Algorithms with a proximal step of the data term: a linear system per iteration, and no limit for gamma."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The iteration x_{k+1} = D_sigma(x_k - gamma grad f(x_k)) and its relatives; unrolled when training."""

    name: Literal["pgd", "fista", "drs", "admm", "hqs"] = "pgd"
    iterations: Count = 10
    """K, at least 1: iterations, or unrolled steps."""
    step_size: Positive | Literal["auto"] = "auto"
    """gamma, above 0; for pgd and fista below 2 / ||A||^2 of the stacked operator. `auto`: 0.99 / ||A||^2."""
    sigma: Positive | Literal["noise"] = 0.05
    """Noise level given to the denoiser, above 0, image range [0, 1]. `noise`: the noise_std drawn for the image."""
    init: Literal["adjoint", "zeros"] = "adjoint"
    """First iterate: A^T y (times the step size of the operator), or zeros."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How the denoiser is applied patch by patch."""

    patch: Count | Literal["none", "fit"] = 128
    """Edge of the patch in pixels, every axis. `none`: the whole image at once on one rank. `fit`: plan takes the one with which the
    busiest rank has the fewest pixels to denoise, halos included; up to 512 in 2-D and 128 in 3-D."""
    halo: CountOrZero = 16
    """Pixels of context on every side of a patch, at least 0 (deepinv's `overlap`)."""
    max_batch_size: Count | Literal["fit"] = "fit"
    """Patches per forward call, at least 1. `fit`: the largest with which plan forecasts a step to fit the card; 1 where the
    profile does not say its memory."""
    checkpoint: Checkpoint = "fit"
    """Activation checkpointing when training. Per patch batch, with deepinv's meanings: `always`, `never`, `auto`. `stages`: `always`,
    and inside the network stage by stage (drunet, unet, or your own network with `checkpoint_stages()`), which needs the least memory
    and a third forward pass. `fit`: the fastest with which plan forecasts a step to fit the card; `always` where the profile does not
    say its memory."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the job asks for."""

    gpus: Count = 1
    """Ranks: one process per GPU, or one CPU process where the machine has none. At least 1. `fit`: the fewest with
    which plan forecasts a step to fit the card (`gpu_memory_gib` of the profile)."""
    layout: Layout = "sharded"
    """`sharded`: each rank holds its own box. `replicated`: the whole image on every rank (deepinv.distributed), the reference."""
    replicas: Count = 1
    """Training in layout `sharded`: groups of `gpus / replicas` ranks, each with images of its own; the gradient is their mean.
    Divides `gpus`."""
    time_min: Annotated[int, Minutes(), Limits(at_least=1, at_most=366 * 24 * 60)] = 30
    """Wall time in minutes, at least 1; `[D-]HH:MM:SS` and `D-HH:MM` are read from the raw text, seconds rounded up to a minute."""
    precision: Literal["float32", "float64", "bf16"] = "float32"
    compile: bool = False
    """torch.compile of the inner denoiser."""

    @property
    def ranks_per_replica(self) -> int:
        """Ranks that work on one image together."""
        return self.gpus // self.replicas


@dataclass(frozen=True, kw_only=True)
class Train:
    """Training of the unrolled network."""

    steps: Count = 100
    """Optimiser steps, at least 1."""
    batch_size: Count = 1
    """Images per step and replica: a step sees `replicas` x `batch_size` images, at most `images`."""
    images: Count = 8
    """Training images: the first so many of the data; synthetic data makes them."""
    held_out: CountOrZero = 2
    """Images after the training images, never trained on, measured before and after; 0: none. They come from `held_out_data` if set."""
    held_out_data: Data | None = None
    """Data of the held-out images where they are not of the same source as the training images."""
    learning_rate: Positive = 1.0e-4
    """Adam's, above 0."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the steps; `cosine` falls to a hundredth of it."""
    loss: Literal["mse", "l1"] = "mse"
    trainable: Annotated[
        tuple[Literal["denoiser", "step_size", "sigma"], ...],
        Length(bare=True, unique=True, says="a list of what is trained"),
    ] = ("denoiser", "step_size", "sigma")
    """What the optimiser changes: weights of the denoiser, gamma_k, sigma_k. With `sigma: noise` there is no sigma_k: the default
    then leaves it out."""
    save_every_steps: Count = 20
    """A save every so many steps, and after the last; at least 1."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How the run behaves over time."""

    seed: Annotated[int, Limits(at_least=0, at_most=2**31 - 1)] = 0
    """Seeds data, noise, masks, initial weights; equal on all ranks."""
    stall_timeout_s: Count = 600
    """A rank without progress for so many seconds ends the run as stalled; at least 1."""
    setup_timeout_s: Count = 600
    """The same limit for everything before the first step."""
    keep_saves: Count = 2
    """Newest saves kept, at least 1."""
    signal_lead_s: Count = 90
    """Seconds before the time limit at which SLURM warns the job, so that it can save; at least 1, less than the time limit.
    Default: 90, or half the time limit where that is less."""
    max_preempts: CountOrZero = 10
    """Requeues after a warning that came before the time limit; 0: none."""
    max_timeouts: CountOrZero = 3
    """Requeues after the time limit; 0: none."""
    measure: Literal["custom", "torch", "nvtx"] = "custom"
    """How a few steps are looked at more closely ([measuring.md](measuring.md)); every mode has peak memory and the sections of all
    steps. `custom`: how long each rank computes, transfers and waits. `torch`: torch.profiler's table of operators and Chrome trace
    of every rank. `nvtx`: ranges for Nsight Systems."""
    measure_warmup_steps: CountOrZero = 2
    """Steps after the start, or a restart, before those that `measure` looks at; fewer where the run has no more."""
    measure_steps: Annotated[int, Limits(at_least=1, at_most=1000)] = 5
    """Steps that `measure` looks at, 1 to 1000; in mode `torch` a trace of many steps is large."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One problem spec. `sweep` is expanded by `sweep.py`; a spec in a run directory has none."""

    name: Annotated[str, NAME]
    """Letters, digits, `.`, `_`, `-`; at most 64; starts with a letter or digit."""
    problem: Problem = field(default_factory=Problem)
    denoiser: Denoiser | Factory = field(default_factory=Denoiser)
    algorithm: Algorithm = field(default_factory=Algorithm)
    tiling: Tiling = field(default_factory=Tiling)
    resources: Resources = field(default_factory=Resources)
    train: Train | None = None
    run: Run = field(default_factory=Run)
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Key -> list of values; a comma-joined key couples its values, each value then a list of the same length."""
    cluster: Annotated[str, NAME] | None = None
    """Name of a cluster profile, one of your own or a built-in one; `dptrain init --list` lists these."""
