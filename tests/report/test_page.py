"""The page: whole, self-contained, and deaf to what a spec says."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dptrain.records.intent import write_json
from dptrain.report import images
from dptrain.report.images import gallery
from dptrain.report.listing import listing
from dptrain.report.page import figures
from dptrain.report.page import html as page
from tests.report.records import ReportedRun, reported
from tests.report.test_figures import study
from tests.status.test_damage import KINDS, damage

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}"


class Seen(html.parser.HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def test_a_study(tmp_path: Path) -> None:
    text = page(study(tmp_path))
    seen = Seen(text)
    assert seen.count("script") == 1 and seen.count("style") == 1 and seen.count("h1") == 1
    idents = [attrs["id"] for _, attrs in seen.tags if attrs.get("id")]
    assert len(idents) == len(set(idents))
    links = [attrs["href"] for tag, attrs in seen.tags if tag == "a"]
    assert all(link and link.startswith("#") and link[1:] in idents for link in links)
    assert "Not shown" in text and "needs a completed training run" in text
    assert text.count('<section class="figure') == text.count("Data: ")


def test_nothing_is_fetched(tmp_path: Path) -> None:
    seen = Seen(page(study(tmp_path)))
    sources = [v for _, attrs in seen.tags for key, v in attrs.items() if key in ("src", "href", "srcset", "data")]
    assert all(v and v.startswith(("#", "data:")) for v in sources)
    (policy,) = [str(a["content"]) for tag, a in seen.tags if tag == "meta" and a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:;") and "unsafe" not in policy
    assert not [tag for tag, attrs in seen.tags if "style" in attrs or any(k.startswith("on") for k in attrs)]


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "x<script>y", "resources.gpus=1")
    run.paths.spec.write_text(f"name: a\nproblem: {{image_size: {HOSTILE!r}, '{{{{ 7*7 }}}}<script>': 1}}\n")
    run.result(psnr_db=[20.0, 21.0], sections={HOSTILE: 1.0})
    run.plan(reasons=[HOSTILE], fits=False)
    failed = ReportedRun(tmp_path, "failed")
    failed.fail(0, message=HOSTILE)
    text = page(reported(run, failed))
    seen = Seen(text)
    assert (
        seen.count("script") == 1
        and seen.count("style") == 1
        and "49" not in re.sub(r"\d{3,}|base64,\S+|sha256-\S+", "", text)
    )
    assert not [a for tag, a in seen.tags if tag == "img"]
    assert text.count("&lt;script&gt;alert(1)") >= 2


def test_what_is_the_same_is_said_once(tmp_path: Path) -> None:
    made = listing(study(tmp_path))
    titles = [column.title for column in made.columns if column.shown]
    assert titles[:6] == ["run", "state", "task", "ranks", "image", "layout"] and "tiling.patch" in titles
    assert "loss" not in titles and "spec.algorithm.iterations" in dict(made.same)
    place = [column.key for column in made.columns].index("peak_memory_bytes_max")
    assert (made.rows[1][place].text, made.rows[1][place].sort) == ("512.0 MiB", str(2**29))


def picture(path: Path, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    Image.fromarray(pixels).save(path)


def test_thumbnails_with_an_error_map(tmp_path: Path) -> None:
    truth = np.zeros((300, 400), np.uint8)
    wrong = truth.copy()
    wrong[:150] = 51
    made = [ReportedRun(tmp_path, f"r{k}", f"resources.gpus={k}") for k in (1, 2, 4)]
    for run, pixels in zip(made, (wrong, wrong, truth), strict=True):
        picture(run.paths.output / "reconstruction.png", pixels)
        picture(run.paths.output / "truth.png", truth)
    found = gallery(reported(*made))
    assert [card.runs for card in found.cards] == [("r1", "r2"), ("r4",)]
    assert found.scale == np.float32(0.2) and found.cards[0].rms is not None
    assert abs(found.cards[0].rms - 0.2 / 2**0.5) < 1e-6 and found.cards[1].rms == 0
    assert all(card.truth and card.error for card in found.cards)


def test_pictures_that_are_none_are_left_out(tmp_path: Path) -> None:
    broken, alone = ReportedRun(tmp_path, "broken"), ReportedRun(tmp_path, "alone")
    (broken.paths.output / "reconstruction.png").write_bytes(b"no picture")
    picture(alone.paths.output / "reconstruction.png", np.zeros((8, 8, 3), np.uint8))
    (card,) = gallery(reported(broken, alone)).cards
    assert card.runs == ("alone",) and card.truth is None and card.error is None
    assert "No truth was left by this run" in page(reported(alone))


def test_thumbnails_keep_to_their_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    runs = []
    for k in range(4):
        run = ReportedRun(tmp_path, f"r{k}", f"run.seed={k}")
        for name in ("reconstruction", "truth"):
            picture(run.paths.output / f"{name}.png", generator.integers(0, 255, (96, 96, 3), np.uint8))
        runs.append(run)
    monkeypatch.setattr(images, "BUDGET_BYTES", 30_000)
    cards = gallery(reported(*runs)).cards
    size = sum(len(text or "") for card in cards for text in (card.reconstruction, card.truth, card.error)) * 3 // 4
    assert len(cards) == 4 and 8_000 < size <= 30_000
    # Room for two of the shortest: the others are named, not dropped.
    monkeypatch.setattr(images, "BUDGET_BYTES", int(2 * images.PIXEL_BYTES * images.SHORTEST**2))
    few = gallery(reported(*runs))
    assert len(few.cards) == 2 and few.left_out == ("r2", "r3")


def test_damaged_runs_stop_no_page(tmp_path: Path) -> None:
    """Whatever is in the place of a file, the page is made, and the sound run is in its figures."""
    sound, runs = ReportedRun(tmp_path, "sound"), []
    sound.result(psnr_db=[20.0, 21.0])
    for where in (
        "plan.json",
        "environment.json",
        "result.json",
        "spec.yaml",
        "intent.json",
        "attempts/1/rank-0.jsonl",
    ):
        for kind in KINDS:
            run = ReportedRun(tmp_path, f"{kind}-{where}".replace(" ", "-").replace("/", "-"))
            run.result(psnr_db=[20.0, 22.0])
            damage(run.paths, where, kind)
            runs.append(run)
    odd = {
        "memory": 3,
        "choices": {"key": 1},
        "reasons": 7,
        "fits": False,
        "max_batch_size": [1],
        "work_multiplier": "x",
    }
    wrong = ReportedRun(tmp_path, "wrong", "resources.gpus=2")
    wrong.plan(**odd)
    wrong.result(sections=[1], psnr_db=[None, "a"], peak_memory_bytes={}, bytes_sent=[1], steps=0)
    write_json(wrong.paths.environment, {"versions": 3, "git": "x"})
    read = reported(sound, wrong, *runs)
    assert "sound" in page(read)
    made, _ = figures(read)
    assert any("sound" in row for row in next(f for f in made if f.ident == "psnr").table.rows)
