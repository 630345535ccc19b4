"""Random legal specs, every section and kind among them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from dptrain.spec import schema as s
from dptrain.spec.checks import deblur_kernel
from dptrain.spec.networks import STAGED
from dptrain.spec.tree import UNPRINTABLE

texts = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cn"]), max_size=30).filter(
    lambda t: not UNPRINTABLE.search(t)
)
paths = texts.map(lambda t: "/data/" + t)
positive = st.floats(min_value=1e-6, max_value=1e6, allow_nan=False)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), texts
)
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,10}", fullmatch=True).filter(lambda k: k not in ("factory", "search_path"))
values = st.recursive(
    scalars, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(texts, v, max_size=3)), max_leaves=8
)
factories = st.builds(
    s.Factory,
    factory=st.sampled_from(["m:f", "package.module:Class.build", "_m1:_f2"]),
    arguments=st.dictionaries(keys, values, max_size=4),
    search_path=paths,
)


@st.composite
def pairs(draw: st.DrawFn, low: float = 0.0) -> tuple[float, ...]:
    ordered = sorted(draw(st.lists(st.floats(low, 10.0, allow_nan=False), min_size=1, max_size=2)))
    return tuple(ordered)


@st.composite
def physics(draw: st.DrawFn, size: tuple[int, ...]) -> s.Physics:
    noise = draw(pairs())
    flat = ["multiframe_superres"] if len(size) == 2 else []
    kind = draw(st.sampled_from([*flat, "deblur", "denoise", "inpaint", "factory"]))
    most = 1 if len(size) == 3 else 2
    blur = tuple(draw(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=most)))
    if kind == "multiframe_superres":
        divisors = [d for d in range(1, 9) if math.gcd(*size) % d == 0]
        factor = draw(st.sampled_from(divisors))
        return s.MultiframeSuperres(frames=draw(st.integers(1, 9)), factor=factor, blur_sigma=blur, noise_std=noise)
    if kind == "deblur" and deblur_kernel(blur) <= min(size):
        return s.Deblur(blur_sigma=blur, noise_std=noise)
    if kind == "inpaint":
        return s.Inpaint(keep=draw(st.floats(0.01, 1.0)), noise_std=noise)
    return draw(factories) if kind == "factory" else s.Denoise(noise_std=noise)


@st.composite
def file_data(draw: st.DrawFn, need_truth: bool) -> s.FileData:
    some = st.lists(paths, min_size=1, max_size=3).map(tuple)
    truth = draw(some) if need_truth else draw(st.one_of(st.none(), some))
    measurements = draw(some) if truth is None else draw(st.one_of(st.none(), some))
    crop: Any = draw(st.sampled_from(["none", "center", "random"])) if measurements is None else "none"
    span = draw(st.one_of(st.none(), st.tuples(st.floats(-100, 0), st.floats(1, 100))))
    return s.FileData(truth=truth, measurements=measurements, range=span, crop=crop)


def data(size: tuple[int, ...], channels: int, need_truth: bool) -> st.SearchStrategy[s.Data]:
    sources: list[Any] = ["synthetic", *(["photo"] if len(size) == 2 and channels in (1, 3) else [])]
    return st.one_of(
        st.sampled_from(sources).map(lambda source: s.SourceData(source=source)), file_data(need_truth), factories
    )


@st.composite
def denoisers(draw: st.DrawFn, size: tuple[int, ...], channels: int) -> s.Denoiser | s.Factory:
    name: Any = draw(st.sampled_from(["drunet", "dncnn", "unet", "identity", "factory"]))
    if name == "factory":
        return draw(factories)
    if name == "identity":
        return s.Denoiser(name=name)
    fits = len(size) == 2 and channels in (1, 3)
    fixed = {"drunet": ["builtin", "pretrained"], "dncnn": ["pretrained"]}.get(name, []) if fits else []
    weights = draw(st.sampled_from(["random", "demo-20250101-1a2b", "/w/net.pth", *fixed]))
    free = weights not in ("builtin", "pretrained")
    count = st.one_of(st.none(), st.integers(2, 8)) if free else st.none()
    init: Any = draw(st.sampled_from(["default", "passthrough"])) if free and name != "unet" else "default"
    if name == "drunet":
        nc = draw(st.one_of(st.none(), st.tuples(*[st.integers(1, 64)] * 4))) if free else None
        return s.Denoiser(name=name, weights=weights, init=init, nc=nc, nb=draw(count))
    if name == "dncnn":
        return s.Denoiser(name=name, weights=weights, init=init, depth=draw(count), width=draw(count))
    return s.Denoiser(name=name, weights=weights, scales=draw(count))


@st.composite
def train(draw: st.DrawFn, size: tuple[int, ...], channels: int, with_sigma: bool) -> s.Train:
    images, held_out = draw(st.integers(1, 20)), draw(st.integers(0, 5))
    what: Any = ["denoiser", "step_size", *(["sigma"] if with_sigma else [])]
    other = draw(st.one_of(st.none(), data(size, channels, need_truth=True))) if held_out else None
    return s.Train(
        steps=draw(st.integers(1, 1000)),
        batch_size=draw(st.integers(1, images)),
        images=images,
        held_out=held_out,
        held_out_data=other,
        learning_rate=draw(positive),
        schedule=draw(st.sampled_from(["constant", "cosine"])),
        loss=draw(st.sampled_from(["mse", "l1"])),
        trainable=(
            "step_size",
            *draw(st.lists(st.sampled_from(what), unique=True).map(lambda w: [x for x in w if x != "step_size"])),
        ),
        save_every_steps=draw(st.integers(1, 100)),
    )


@st.composite
def specs(draw: st.DrawFn) -> s.Spec:
    size = tuple(8 * n for n in draw(st.lists(st.integers(3, 40), min_size=2, max_size=3)))
    channels = draw(st.integers(1, 6))
    chosen = draw(physics(size))
    training = draw(st.booleans())
    of = draw(data(size, channels, need_truth=training))
    measured = isinstance(of, s.FileData) and of.measurements is not None
    blind = (
        not isinstance(chosen, s.Factory) and chosen.noise_std[0] > 0 and not (measured and len(chosen.noise_std) == 2)
    )
    sigma: Any = draw(st.one_of(positive, st.just("noise"))) if blind else draw(positive)
    gpus, time_min = draw(st.integers(1, 64)), draw(st.integers(1, 10_000))
    patch: Any = draw(st.one_of(st.integers(1, 512), st.just("none"))) if gpus == 1 else draw(st.integers(1, 512))
    net, compiled = draw(denoisers(size, channels)), draw(st.booleans())
    staged = not compiled and (isinstance(net, s.Factory) or net.name in STAGED)
    checkpoint: Any = draw(st.sampled_from(["fit", "auto", "always", "never", *(["stages"] if staged else [])]))
    return s.Spec(
        name=draw(names),
        problem=s.Problem(image_size=size, channels=channels, physics=chosen, data=of),
        denoiser=net,
        algorithm=s.Algorithm(
            name=draw(st.sampled_from(["pgd", "fista", "drs", "admm", "hqs"])),
            iterations=draw(st.integers(1, 100)),
            step_size=draw(st.one_of(positive, st.just("auto"))),
            sigma=sigma,
            init=draw(st.sampled_from(["adjoint", "zeros"])),
        ),
        tiling=s.Tiling(
            patch=patch,
            halo=draw(st.integers(0, min(size) - 1)),
            max_batch_size=draw(st.one_of(st.integers(1, 64), st.just("fit"))),
            checkpoint=checkpoint,
        ),
        resources=s.Resources(
            gpus=gpus,
            time_min=time_min,
            precision=draw(st.sampled_from(["float32", "float64", "bf16"])),
            compile=compiled,
        ),
        train=draw(train(size, channels, sigma != "noise")) if training else None,
        run=s.Run(
            seed=draw(st.integers(0, 2**31 - 1)),
            stall_timeout_s=draw(st.integers(1, 10_000)),
            setup_timeout_s=draw(st.integers(1, 10_000)),
            keep_saves=draw(st.integers(1, 9)),
            signal_lead_s=draw(st.integers(1, time_min * 60 - 1)),
            max_preempts=draw(st.integers(0, 99)),
            max_timeouts=draw(st.integers(0, 99)),
            measure=draw(st.sampled_from(["custom", "torch", "nvtx"])),
            measure_warmup_steps=draw(st.integers(0, 99)),
            measure_steps=draw(st.integers(1, 1000)),
        ),
        sweep=draw(sweeps(min(size), gpus)),
        cluster=draw(st.one_of(st.none(), names)),
    )


@st.composite
def sweeps(draw: st.DrawFn, shortest: int, gpus: int) -> dict[str, tuple[Any, ...]]:
    axes = {
        "algorithm.iterations": st.integers(1, 99),
        "algorithm.step_size": st.one_of(positive, st.just("auto")),
        "run.seed": st.integers(0, 99),
        "tiling.patch, tiling.halo": st.tuples(st.integers(1, 99), st.integers(0, shortest - 1)),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(axes)), unique=True, max_size=3))
    return {key: tuple(draw(st.lists(axes[key], min_size=1, max_size=3, unique=True))) for key in chosen}
