"""The page of a report in headless chromium: no request, no error, sorting, filtering, tables, axe; its size and its time."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dptrain.records.index import find_runs
from dptrain.records.paths import RunPaths
from dptrain.report.page import html
from dptrain.report.runs import load_runs
from dptrain.status.state import run_status
from tests.browser import chromium
from tests.cli.cli import Cli

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1500)]
SPEC = """
name: study
problem: {image_size: [64, 64], channels: 1, physics: {name: deblur, blur_sigma: 1.0}, data: {source: synthetic}}
denoiser: {name: dncnn, weights: random, depth: 3, width: 4}
algorithm: {iterations: 8}
tiling: {patch: 32, halo: 4}
"""
GRID = "sweep: {resources.gpus: [1, 2], resources.layout: [sharded, replicated]}\n"
PAGE_LIMIT_BYTES = 5_000_000
RUNS, GOAL_S = 300, 20.0


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real runs: one and two ranks in two layouts, an untiled one, and one that fails."""
    folder = tmp_path_factory.mktemp("study")
    cli = Cli(folder)
    assert cli("sweep", cli.write("grid.yaml", SPEC + GRID), "--wait", timeout_s=1000).code == 0
    spec = cli.write("plain.yaml", SPEC)
    assert cli("infer", spec, "--set", "tiling.patch=none", timeout_s=600).code == 0
    failing = Cli(folder, DPTRAIN_FAULT="raise@rank=0,step=3", DPTRAIN_FAULT_ALLOW="1")
    assert failing("infer", spec, timeout_s=600).code == 1
    return folder / "runs"


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page, opened; `seen` and `said` are its requests and what it wrote to the console."""
    with chromium() as browser:
        # Only now: the runs take a minute, and without a browser nobody looks.
        study: Path = request.getfixturevalue("study")
        file = tmp_path_factory.mktemp("page") / "report.html"
        file.write_text(page_of(find_runs(study)), encoding="utf-8")
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.seen, opened.said = [], []
        opened.on("request", lambda request: opened.seen.append(request.url))
        opened.on("console", lambda message: opened.said.append(message.text))
        opened.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.goto(file.as_uri())
        yield opened


def page_of(runs: list[RunPaths]) -> str:
    return html(load_runs(runs, run_status(runs)))


def shown_rows(page: Any) -> list[str]:
    """Run ids of the visible rows, in order."""
    found: list[str] = page.locator("#table tbody tr:not([hidden]) th").all_inner_texts()
    return found


def test_nothing_is_fetched_and_nothing_complains(page: Any) -> None:
    page.wait_for_timeout(300)
    fetched = [url for url in page.seen if not url.startswith("data:")]
    assert len(fetched) == 1 and fetched[0].startswith("file://") and page.said == []


def test_sorting_with_mouse_and_keyboard(page: Any) -> None:
    head = page.locator("#table th", has=page.get_by_role("button", name="s/step", exact=True))
    for expected in ("ascending", "descending"):
        head.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == expected
        texts = page.evaluate(
            """() => { const heads = [...document.querySelectorAll('#table thead th')];
            const k = heads.findIndex(h => h.hasAttribute('aria-sort'));
            return [...document.querySelectorAll('#table tbody tr')].map(r => r.cells[k].dataset.sort || null) }"""
        )
        values = [float(text) for text in texts if text]
        assert len(values) > 3 and values == sorted(values, reverse=expected == "descending")
        assert texts[len(values) :] == [None] * (len(texts) - len(values))
    page.get_by_role("button", name="ranks", exact=True).click()
    assert head.get_attribute("aria-sort") is None


def test_filtering(page: Any) -> None:
    every = len(shown_rows(page))
    page.get_by_label("Filter").fill("replicated completed")
    left = shown_rows(page)
    assert 0 < len(left) < every and page.locator("#count").inner_text() == f"{len(left)} of {every} runs"
    page.get_by_label("Filter").fill("")
    assert len(shown_rows(page)) == every


def test_every_figure_has_its_table(page: Any) -> None:
    figures = page.locator("section.figure")
    assert figures.count() >= 6
    for k in range(figures.count()):
        figure = figures.nth(k)
        figure.locator("summary").click()
        assert figure.locator("table tbody tr").count() and figure.locator("table").is_visible()
        assert len(figure.locator("p.how").inner_text()) > 60


def test_reconstructions_have_error_maps(page: Any) -> None:
    assert page.locator("#images img").count() >= 3
    broken = page.evaluate("() => [...document.images].filter(i => !i.complete || !i.naturalWidth).length")
    assert broken == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(page: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the extra `browser` is not installed")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    found = axe.Axe().run(page).response["violations"]
    for one in found:
        print(one["impact"], one["id"], [node["html"][:120] for node in one["nodes"][:3]])
    assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_itself_does_not_scroll_sideways(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


def test_on_paper_data_are_open_and_controls_gone(page: Any) -> None:
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and not page.locator("#tools").is_visible()
    assert len(page.pdf()) > 10_000
    page.emulate_media(media="screen")


def test_size_of_100_runs_and_time_of_300(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = [paths for paths in find_runs(study) if paths.result.is_file()]
    copies = [copied(first[k % len(first)], tmp_path, k) for k in range(RUNS)]
    size = len(page_of(copies[:100]).encode())
    begin, worked = time.perf_counter(), time.process_time()
    whole = page_of(copies)
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    with capsys.disabled():
        print(
            f"\n100 runs: {size / 1e6:.2f} MB; {RUNS} runs: {seconds:.1f} s, {worked:.1f} s of CPU (goal {GOAL_S:.0f} s), "
            f"{len(whole) / 1e6:.2f} MB"
        )
    assert size < PAGE_LIMIT_BYTES


def copied(paths: RunPaths, folder: Path, number: int) -> RunPaths:
    """The run once more under another id."""
    name = f"{paths.run_id}-{number:03}"
    copy = RunPaths(folder / name)
    shutil.copytree(paths.dir, copy.dir)
    intent = json.loads(copy.intent.read_text(encoding="utf-8"))
    copy.intent.write_text(json.dumps({**intent, "run": name}), encoding="utf-8")
    return copy
