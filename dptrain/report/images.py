"""Thumbnails of reconstructions beside the truth and a map of their error, as small PNG files in text.

Made of the 8-bit pictures that runs leave in `output/`, so an error is known to about 0.002 of the range, and of images longer than
2048 pixels it is that of their block means. Runs whose thumbnails are equal share one card.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dptrain.report.groups import completed, labels
from dptrain.report.runs import Run

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LONGEST, SHORTEST = 224, 24
"""Edges of a thumbnail, pixels: the largest with which all fit into the budget is taken."""
BUDGET_BYTES = 2_000_000
"""Of all thumbnails together, before they become text."""
PIXEL_BYTES = 2.5
"""Of a card's three pictures together, per pixel of one of them."""
MOST_PIXELS = 400_000_000
"""Of pictures that are opened, some seconds' worth; runs beyond it have no thumbnail."""
IMAGES_PER_RUN = 4
NEARLY_ALL = 0.995
"""Of the pixels of an error map are not brighter than its scale: single ones would leave the rest dark."""
LEVELS = 128
HEAT = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))
"""Colours of the error map, from none to most (matplotlib's inferno at five places)."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One image of one or more runs; pictures are `data:` texts."""

    label: str
    runs: tuple[str, ...]
    """More than one: their thumbnails are equal."""
    reconstruction: str
    truth: str | None
    error: str | None
    rms: float | None
    """Root mean square of the error, of a range of 1."""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """All cards."""

    cards: tuple[Card, ...]
    scale: float | None
    """Error from which on every error map is brightest; None: there is no error map."""
    left_out: tuple[str, ...]
    """Runs beyond the limits."""


@dataclass(kw_only=True)
class _Found:
    """Pixels (h, w, 3) and (h, w) of one image, before its size in the page is known."""

    label: str
    runs: list[str]
    reconstruction: NDArray[Any]
    truth: NDArray[Any] | None
    error: NDArray[Any] | None
    rms: float | None


def gallery(runs: Sequence[Run]) -> Gallery:
    """The cards of all completed reconstructions."""
    able = [run for run in completed(runs) if run.status.task == "infer"]
    cards: dict[bytes, _Found] = {}
    left_out, opened = [], 0
    for run, label in zip(able, labels(able), strict=True):
        if opened > MOST_PIXELS:
            left_out.append(run.name)
            continue
        for path in sorted(run.paths.output.glob("reconstruction*.png"))[:IMAGES_PER_RUN]:
            found, pixels = _read(run, path, label)
            opened += pixels
            if found is not None:
                mark = found.reconstruction.tobytes() + (b"" if found.error is None else found.error.tobytes())
                same = cards.setdefault(mark, found)
                if run.name not in same.runs:
                    same.runs.append(run.name)
    return _encoded(list(cards.values()), left_out)


def _read(run: Run, path: Path, label: str) -> tuple[_Found | None, int]:
    """One image, and how many pixels were opened for it."""
    import numpy as np

    shown = _open(path)
    if shown is None:
        return None, 0
    truth = _open(path.with_name(path.name.replace("reconstruction", "truth", 1)))
    error, rms = None, None
    if truth is not None and truth.shape == shown.shape:
        distance = np.abs(shown.astype(np.float32) - truth) / 255
        rms = float(np.sqrt(np.mean(distance**2)))
        error = _smaller(distance.mean(2), LONGEST)
    part = path.stem.removeprefix("reconstruction").lstrip("-")
    return _Found(
        label=f"{label}, {part}" if part else label,
        runs=[run.name],
        reconstruction=_smaller(shown, LONGEST),
        truth=None if truth is None else _smaller(truth, LONGEST),
        error=error,
        rms=rms,
    ), shown.shape[0] * shown.shape[1] * 2


def _open(path: Path) -> NDArray[Any] | None:
    """Pixels (h, w, 3), 8 bits; None where there is no such picture."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG",)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # a picture is worth no failure
        return None


def _smaller(pixels: NDArray[Any], edge: int) -> NDArray[Any]:
    """Means of areas, at most so long."""
    import numpy as np
    from PIL import Image

    longest = max(pixels.shape[:2])
    if longest <= edge:
        return pixels
    size = tuple(max(1, round(n * edge / longest)) for n in pixels.shape[1::-1])
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


def _encoded(found: Sequence[_Found], left_out: Sequence[str]) -> Gallery:
    import numpy as np

    # Smaller than the shortest edge nothing is to be seen: what there is no room for is named.
    most = int(BUDGET_BYTES / (PIXEL_BYTES * SHORTEST**2))
    left_out = [*left_out, *(run for f in found[most:] for run in f.runs)]
    found = found[:most]
    errors = [float(np.quantile(f.error, NEARLY_ALL)) for f in found if f.error is not None]
    scale = (max(errors) or 1.0) if errors else None
    # Three pictures of about a byte a pixel; what is smoother than that leaves room.
    edge = min(LONGEST, math.isqrt(int(BUDGET_BYTES / (PIXEL_BYTES * max(1, len(found))))))
    total, cards = BUDGET_BYTES + 1, tuple[Card, ...]()
    while total > BUDGET_BYTES and edge >= SHORTEST:
        cards = tuple(_card(f, edge, scale) for f in found)
        total = sum(len(t or "") for c in cards for t in (c.reconstruction, c.truth, c.error)) * 3 // 4
        # Bytes go nearly with the pixels.
        edge = min(edge * 9 // 10, int(edge * math.sqrt(BUDGET_BYTES / max(1, total)) * 0.97))
    return Gallery(cards=cards, scale=scale, left_out=tuple(left_out))


def _card(found: _Found, edge: int, scale: float | None) -> Card:
    return Card(
        label=found.label,
        runs=tuple(found.runs),
        reconstruction=_png(_smaller(found.reconstruction, edge)),
        truth=None if found.truth is None else _png(_smaller(found.truth, edge)),
        error=None if found.error is None or scale is None else _heat(_smaller(found.error, edge) / scale),
        rms=found.rms,
    )


def _heat(share: NDArray[Any]) -> str:
    """An error map as a `data:` text.

    :param share: (h, w) of the scale; what is beyond 1 is brightest.
    """
    import numpy as np
    from PIL import Image

    places, levels = np.linspace(0, 1, len(HEAT)), np.linspace(0, 1, LEVELS)
    palette = np.stack([np.interp(levels, places, [colour[c] for colour in HEAT]) for c in range(3)], -1)
    picture = Image.fromarray(np.round(np.clip(share, 0, 1) * (LEVELS - 1)).astype(np.uint8)).convert("P")
    picture.putpalette(np.round(palette).astype(np.uint8).tobytes())
    return _data(picture)


def _png(pixels: NDArray[Any]) -> str:
    """A picture as a `data:` text; of 128 colours at most, in which a thumbnail looks the same and is a third as long."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    gray = (pixels[..., :1] == pixels).all()
    return _data(picture.convert("L") if gray else picture.quantize(LEVELS, Image.Quantize.FASTOCTREE))


def _data(picture: Any) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
