"""What values may be together, and what the product does not do yet. Values alone are judged by the marks of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dptrain.spec.build import Builder
from dptrain.spec.networks import STAGED
from dptrain.spec.schema import (
    Data,
    Deblur,
    Denoiser,
    Factory,
    FileData,
    MultiframeSuperres,
    SourceData,
    Spec,
)

SUPERRES_KERNEL = 5
"""Edge of the blur kernel of `multiframe_superres` in pixels."""


@dataclass(frozen=True)
class Clash:
    """Values that do not go together. The position is that of the first key that was written, overrides first."""

    keys: tuple[str, ...]
    found: str
    write: str


def check_spec(spec: Spec, builder: Builder) -> None:
    """Note every clash between values that could each be read."""
    for check in (_image, _physics, _data, _denoiser, _algorithm, _resources, _stages, _train, _run):
        for clash in check(spec, builder):
            _note(builder, clash)


def deblur_kernel(blur_sigma: tuple[float, ...]) -> int:
    """Edge in pixels of deepinv's Gaussian kernel for these standard deviations."""
    return 2 * int(max(blur_sigma) / 0.3 + 1) + 1


def default_trainable(spec: Spec) -> tuple[Literal["denoiser", "step_size", "sigma"], ...]:
    """`train.trainable` where the file does not say."""
    return ("denoiser", "step_size") if spec.algorithm.sigma == "noise" else ("denoiser", "step_size", "sigma")


def default_signal_lead_s(spec: Spec) -> int:
    """`run.signal_lead_s` where the file does not say."""
    return min(90, spec.resources.time_min * 30)


def _note(builder: Builder, clash: Clash) -> None:
    paths = [tuple(key.split(".")) for key in clash.keys]
    if any(
        path[: len(bad)] == bad or bad[: len(path)] == path
        for path in paths
        for bad in builder.bad | (builder.meant - builder.at.keys())
    ):
        return
    written = [p for p in paths if p in builder.at]
    if not written:
        parents = [p[:n] for p in paths for n in range(len(p) - 1, -1, -1) if p[:n] in builder.at]
        written = parents[:1]
    path = min(written, key=lambda p: builder.at[p].source.is_file)
    bad = set(builder.bad)
    builder.note(path, builder.at[path], clash.found, clash.write)
    builder.bad = bad


def _wrote(builder: Builder, key: str) -> bool:
    return tuple(key.split(".")) in builder.at


def _image(spec: Spec, builder: Builder) -> Iterator[Clash]:
    size, halo = spec.problem.image_size, spec.tiling.halo
    if halo >= min(size):
        found = f"tiling.halo is {halo}, not smaller than every axis of the image {list(size)}"
        yield Clash(("tiling.halo", "problem.image_size", "tiling.patch"), found, f"halo: {min(16, min(size) - 1)}")


def _physics(spec: Spec, builder: Builder) -> Iterator[Clash]:
    physics, size = spec.problem.physics, spec.problem.image_size
    if isinstance(physics, Factory):
        return
    low, high = physics.noise_std[0], physics.noise_std[-1]
    if low > high:
        yield Clash(
            ("problem.physics.noise_std",),
            f"problem.physics.noise_std is [{low}, {high}], highest first",
            f"noise_std: [{high}, {low}]",
        )
    if isinstance(physics, MultiframeSuperres) and len(size) == 3:
        found = f"problem.physics: multiframe_superres is 2-D; image_size is {list(size)}"
        yield Clash(("problem.physics.name", "problem.physics", "problem.image_size"), found, "name: deblur, or [H, W]")
        return
    if isinstance(physics, (MultiframeSuperres, Deblur)):
        keys = ("problem.physics.blur_sigma", "problem.physics", "problem.image_size")
        if len(physics.blur_sigma) == 2 and len(size) == 3:
            found = "problem.physics.blur_sigma has two numbers, which only a 2-D image can use"
            yield Clash(keys, found, f"blur_sigma: {physics.blur_sigma[0]}")
        kernel = SUPERRES_KERNEL if isinstance(physics, MultiframeSuperres) else deblur_kernel(physics.blur_sigma)
        if kernel > min(size):
            found = f"the blur kernel of problem.physics has {kernel} pixels along an axis, more than the image {list(size)}"
            write = "a larger image_size" + ("" if kernel == SUPERRES_KERNEL else ", or a smaller blur_sigma")
            yield Clash(("problem.physics.blur_sigma", "problem.image_size", "problem.physics"), found, write)
    if isinstance(physics, MultiframeSuperres) and any(n % physics.factor for n in size):
        fits = [n - n % physics.factor or physics.factor for n in size]
        found = (
            f"problem.physics.factor is {physics.factor}, which does not divide every axis of image_size {list(size)}"
        )
        yield Clash(
            ("problem.physics.factor", "problem.image_size", "problem.physics"),
            found,
            f"image_size: {fits}, or another factor",
        )


def _data(spec: Spec, builder: Builder) -> Iterator[Clash]:
    yield from _one_data(spec, spec.problem.data, "problem.data")
    if spec.train is not None and spec.train.held_out_data is not None:
        yield from _one_data(spec, spec.train.held_out_data, "train.held_out_data")


def _one_data(spec: Spec, data: Data, key: str) -> Iterator[Clash]:
    size, channels = spec.problem.image_size, spec.problem.channels
    if isinstance(data, SourceData) and data.source == "photo":
        if len(size) == 3:
            yield Clash(
                (f"{key}.source", "problem.image_size"),
                f"{key}: photo is 2-D; image_size is {list(size)}",
                "source: synthetic, or image_size: [H, W]",
            )
        if channels not in (1, 3):
            yield Clash(
                (f"{key}.source", "problem.channels"),
                f"{key}: photo has 1 or 3 channels, not {channels}",
                "source: synthetic, or channels: 3",
            )
    if isinstance(data, FileData):
        if data.truth is None and data.measurements is None:
            yield Clash(
                (f"{key}.truth", f"{key}.measurements"),
                f"{key} has neither truth nor measurements",
                'truth: "images/*.png", or measurements: "*.npy"',
            )
        if data.range is not None and data.range[0] >= data.range[1]:
            low, high = data.range
            yield Clash(
                (f"{key}.range",),
                f"{key}.range is [{low}, {high}]; low must be below high",
                f"range: [{min(low, high)}, {max(low, high)}]",
            )
        if data.measurements is not None and data.crop != "none":
            found = f"{key}.crop is {data.crop}, but measured data cannot be cropped with the truth"
            yield Clash((f"{key}.crop", f"{key}.measurements"), found, "crop: none")


def _denoiser(spec: Spec, builder: Builder) -> Iterator[Clash]:
    net = spec.denoiser
    if isinstance(net, Factory) or net.name == "identity":
        return
    yield from _weights(spec, net)
    shape = ("nc", "nb", "depth", "width", "scales")
    given = [k for k in shape if getattr(net, k) is not None]
    if given and net.weights in ("builtin", "pretrained"):
        keys = tuple(f"denoiser.{k}" for k in given)
        yield Clash(
            keys,
            f"denoiser.{given[0]} is set, but the {net.weights} weights have a shape of their own",
            f"weights: random, or no {given[0]}",
        )
    if net.init == "passthrough" and net.weights in ("builtin", "pretrained"):
        found = f"denoiser.init: passthrough is for random weights; weights is {net.weights}"
        yield Clash(("denoiser.init", "denoiser.weights"), found, "weights: random, or no init")


def _weights(spec: Spec, net: Denoiser) -> Iterator[Clash]:
    """Which networks come with weights."""
    size, channels = spec.problem.image_size, spec.problem.channels
    if net.weights not in ("builtin", "pretrained"):
        return
    names = ("drunet",) if net.weights == "builtin" else ("drunet", "dncnn")
    keys = ("denoiser.weights", "denoiser.name", "denoiser", "problem.image_size", "problem.channels")
    default = "" if net.weights != "builtin" else " (the default)"
    if net.name not in names:
        write = (
            "weights: pretrained, random, a file or a run"
            if net.name == "dncnn"
            else "weights: random, a file or a run"
        )
        yield Clash(
            ("denoiser.weights", "denoiser.name"),
            f"denoiser.weights: {net.weights}{default} does not exist for {net.name}",
            write,
        )
    elif len(size) == 3:
        yield Clash(
            keys,
            f"denoiser.weights: {net.weights}{default} is for 2-D images; image_size is {list(size)}",
            "weights: random, a file or a run",
        )
    elif channels not in (1, 3):
        yield Clash(
            keys,
            f"denoiser.weights: {net.weights}{default} is for 1 or 3 channels, not {channels}",
            "weights: random, a file or a run",
        )


def _algorithm(spec: Spec, builder: Builder) -> Iterator[Clash]:
    if spec.algorithm.sigma != "noise":
        return
    physics = spec.problem.physics
    if isinstance(physics, Factory):
        found = "algorithm.sigma: noise needs a noise_std, which a physics of a factory does not state"
        yield Clash(("algorithm.sigma", "problem.physics"), found, "sigma: 0.05, or another number")
        return
    keys = ("algorithm.sigma", "problem.physics.noise_std")
    if physics.noise_std[0] == 0:
        yield Clash(
            keys,
            "algorithm.sigma: noise with a noise_std of 0 leaves the denoiser without a level",
            "sigma: 0.05, or noise_std above 0",
        )
    measured = isinstance(spec.problem.data, FileData) and spec.problem.data.measurements is not None
    if measured and physics.noise_std[0] != physics.noise_std[-1]:
        found = (
            "algorithm.sigma: noise needs one noise_std for measured data; a range is drawn from only when simulating"
        )
        yield Clash((*keys, "problem.data.measurements"), found, f"noise_std: {physics.noise_std[-1]}")


def _resources(spec: Spec, builder: Builder) -> Iterator[Clash]:
    gpus, replicas = spec.resources.gpus, spec.resources.replicas
    each, rest = divmod(gpus, replicas)
    if rest:
        found = f"resources.replicas {replicas} does not divide resources.gpus {gpus}: {gpus} = {replicas} x {each} + {rest}"
        below = max(n for n in range(1, replicas) if gpus % n == 0)
        write = f"replicas: {below}, or gpus: {replicas * (each + 1)}"
        yield Clash(("resources.replicas", "resources.gpus"), found, write)
    elif replicas > 1 and spec.resources.layout == "replicated":
        found = f"resources.replicas is {replicas}, but layout replicated has all {gpus} ranks on one image"
        yield Clash(("resources.replicas", "resources.layout"), found, "replicas: 1, or layout: sharded")
    if spec.tiling.patch == "none" and each > 1:
        found = f"tiling.patch: none is the whole image on one rank, but resources.gpus is {gpus}"
        if replicas > 1:
            found += f" = {replicas} replicas x {each} ranks"
        yield Clash(("tiling.patch", "resources.gpus"), found, f"gpus: {replicas}, or patch: 128")


def _stages(spec: Spec, builder: Builder) -> Iterator[Clash]:
    if spec.tiling.checkpoint != "stages":
        return
    net = spec.denoiser
    if isinstance(net, Denoiser) and net.name not in STAGED:
        known = " and ".join(STAGED)
        found = (
            f"tiling.checkpoint: stages is for {known} and your own code that declares its stages, not for {net.name}"
        )
        yield Clash(("tiling.checkpoint", "denoiser.name"), found, "checkpoint: always")
    if spec.resources.compile:
        found = "tiling.checkpoint: stages does not go with resources.compile, which makes one piece of all stages"
        yield Clash(("tiling.checkpoint", "resources.compile"), found, "compile: false, or checkpoint: always")


def _train(spec: Spec, builder: Builder) -> Iterator[Clash]:
    train = spec.train
    if train is None:
        return
    replicas = spec.resources.replicas
    if replicas == 1 and train.batch_size > train.images:
        found = f"train.batch_size is {train.batch_size}, more than train.images {train.images}"
        yield Clash(("train.batch_size", "train.images"), found, f"batch_size: {train.images}")
    elif (joint := replicas * train.batch_size) > train.images:
        found = (
            f"resources.replicas {replicas} x train.batch_size {train.batch_size} = {joint} images per step, more than "
            f"train.images {train.images}"
        )
        yield Clash(("train.images", "train.batch_size", "resources.replicas"), found, f"images: {joint}")
    if train.held_out == 0 and train.held_out_data is not None:
        yield Clash(
            ("train.held_out_data", "train.held_out"),
            "train.held_out_data is given, but train.held_out is 0",
            "held_out: 2, or no held_out_data",
        )
    if "sigma" in train.trainable and spec.algorithm.sigma == "noise" and _wrote(builder, "train.trainable"):
        found = "train.trainable names sigma, but algorithm.sigma: noise leaves no sigma to train"
        yield Clash(("train.trainable", "algorithm.sigma"), found, "trainable: [denoiser, step_size], or sigma: 0.05")
    data = [("problem.data", spec.problem.data), ("train.held_out_data", train.held_out_data)]
    for key, one in data:
        if isinstance(one, FileData) and one.truth is None and one.measurements is not None:
            found = f"{key}.truth is null, but training compares with the truth"
            yield Clash(
                (f"{key}.truth", f"{key}.measurements", "train"),
                found,
                "truth: files, or train: null to reconstruct only",
            )
    identity = isinstance(spec.denoiser, Denoiser) and spec.denoiser.name == "identity"
    if identity and train.trainable == ("denoiser",):
        yield Clash(
            ("train.trainable", "denoiser.name"),
            "train.trainable is the denoiser alone, and identity has no weights",
            "trainable: [step_size]",
        )


def _run(spec: Spec, builder: Builder) -> Iterator[Clash]:
    lead, limit = spec.run.signal_lead_s, spec.resources.time_min * 60
    if lead >= limit and _wrote(builder, "run.signal_lead_s"):
        found = f"run.signal_lead_s is {lead}, not less than the time limit of {limit} s"
        yield Clash(("run.signal_lead_s", "resources.time_min"), found, f"signal_lead_s: {limit // 2}")
