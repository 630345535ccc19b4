"""What plan looks at without torch: headers of image files, user modules, the shapes a training run saved.

Only what a header says for certain is refused; a file that cannot be judged here is left to the ranks, which read it whole.
"""

from __future__ import annotations

import ast
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path

from dptrain.records.index import resolve_run
from dptrain.records.paths import RunPaths
from dptrain.spec.files import expand_files
from dptrain.spec.schema import Denoiser, Factory, FileData, MultiframeSuperres, Spec

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt")
FILES_LOOKED_AT = 200
"""Headers read per plan; a folder of thousands on a network disk would make plan slow."""
EXIF_ORIENTATION, EXIF_TURNED = 0x0112, (5, 6, 7, 8)


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    shape: tuple[int, ...]
    """Spatial pixels of a picture; the whole shape of an NPY."""
    channels: int | None = None
    """1 or more; None: not known."""


def weights_run(spec: Spec) -> RunPaths | None:
    """The run that `denoiser.weights` names; None where it names none. Raises NoSuchRun."""
    denoiser = spec.denoiser
    if not isinstance(denoiser, Denoiser) or denoiser.name == "identity":
        return None
    if denoiser.weights in ("builtin", "pretrained", "random") or Path(denoiser.weights).suffix in WEIGHT_SUFFIXES:
        return None
    return resolve_run(denoiser.weights)


def freeze_weights(spec: Spec) -> Spec:
    """The spec with a run named as weights replaced by its directory: `last` and a prefix mean something else later."""
    run = weights_run(spec)
    if run is None:
        return spec
    assert isinstance(spec.denoiser, Denoiser)
    return replace(spec, denoiser=replace(spec.denoiser, weights=str(run.dir.absolute())))


def learned_iterations(run: RunPaths) -> int | None:
    """Unrolled steps a training run learned step sizes for; None: one for all steps, or nothing to read."""
    steps = [int(p.name[5:]) for p in run.saves.glob("step-*") if p.name[5:].isdigit()]
    file = run.save(max(steps, default=0)) / "model.safetensors"
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, 2**24)))
    except (OSError, ValueError, struct.error):
        return None
    count = header.get("step_size", {}).get("shape", [1])[0]
    return count if count > 1 else None


def missing_modules(spec: Spec) -> Iterator[str]:
    """User code that cannot be found, without importing it."""
    data = (spec.problem.data, spec.train.held_out_data if spec.train else None)
    for where, part in zip(
        ("problem.physics", "denoiser", "problem.data", "train.held_out_data"),
        (spec.problem.physics, spec.denoiser, *data),
        strict=True,
    ):
        if isinstance(part, Factory):
            top = part.factory.split(":")[0].split(".")[0]
            folders = [part.search_path] if part.search_path else []
            # A name already imported, dptrain itself above all, need not lie on the path (editable installs).
            if top not in sys.modules and PathFinder.find_spec(top, [*folders, *sys.path]) is None:
                yield f"{where}: no module {top!r} in {part.search_path or 'the environment'}"


def wrong_files(spec: Spec) -> Iterator[str]:
    """Files whose header does not fit the spec."""
    data = spec.problem.data
    if not isinstance(data, FileData):
        return
    for path in _some(data.truth):
        header = _header(path)
        if header is not None:
            yield from _truth_problem(spec, data, path, header)
    expected = _measured_shape(spec)
    for path in _some(data.measurements):
        header = _header(path)
        if header is not None and expected is not None and header.shape != expected:
            yield f"problem.data.measurements: {path} has shape {list(header.shape)}, the physics measures {list(expected)}"


def _some(patterns: Sequence[str] | None) -> list[Path]:
    return [Path(p) for p in expand_files(tuple(patterns or ()))[:FILES_LOOKED_AT]]


def _truth_problem(spec: Spec, data: FileData, path: Path, header: Header) -> Iterator[str]:
    size, axes = spec.problem.image_size, len(spec.problem.image_size)
    shape = header.shape
    if path.suffix.lower() == ".npy":
        if len(shape) not in (axes, axes + 1):
            yield f"problem.data.truth: {path} has shape {list(shape)}, expected {axes} axes, or {axes + 1} with channels first"
            return
        shape = shape[-axes:]
    if len(shape) != axes:
        return
    if any(have < want for have, want in zip(shape, size, strict=True)):
        yield f"problem.data.truth: {path} has {_by(shape)} pixels, smaller than image_size {list(size)}"
    elif shape != size and data.crop == "none":
        yield (
            f"problem.data.truth: {path} has {_by(shape)} pixels, image_size is {list(size)}; "
            f"write: image_size: {list(shape)}, or crop: center"
        )
    if header.channels == 1 and spec.problem.channels == 3:
        yield f"problem.data.truth: {path} is gray, problem.channels is 3; write: channels: 1"


def _measured_shape(spec: Spec) -> tuple[int, ...] | None:
    physics, image = spec.problem.physics, (spec.problem.channels, *spec.problem.image_size)
    if isinstance(physics, Factory):
        return None
    if isinstance(physics, MultiframeSuperres):
        one = (image[0], *(n // physics.factor for n in image[1:]))
        return one if physics.frames == 1 else (physics.frames, *one)
    return image


def _header(path: Path) -> Header | None:
    try:
        return _npy_header(path) if path.suffix.lower() == ".npy" else _picture_header(path)
    except (OSError, ValueError, SyntaxError, TypeError, struct.error, LookupError):
        return None


def _npy_header(path: Path) -> Header | None:
    # Format of numpy.lib.format: magic, version, length of the header, a dictionary as Python text.
    with path.open("rb") as stream:
        start = stream.read(8)
        if start[:6] != b"\x93NUMPY":
            return None
        wide = start[6] >= 2
        (length,) = struct.unpack("<I" if wide else "<H", stream.read(4 if wide else 2))
        shape = ast.literal_eval(stream.read(length).decode("latin1"))["shape"]
    return Header(tuple(int(n) for n in shape))


def _picture_header(path: Path) -> Header | None:
    from PIL import Image

    with Image.open(path) as picture:
        if getattr(picture, "n_frames", 1) > 1:
            return None
        width, height = picture.size
        if picture.format == "JPEG" and picture.getexif().get(EXIF_ORIENTATION) in EXIF_TURNED:
            width, height = height, width
        gray = picture.mode in ("1", "L", "LA", "I", "I;16", "I;16B", "F")
        return Header((height, width), 1 if gray else None)


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
