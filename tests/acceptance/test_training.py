"""The training template: it learns, and what it learned can be used."""

from __future__ import annotations

import statistics

import pytest

from tests.acceptance.runs import Run, run
from tests.cli.cli import Cli


@pytest.fixture(scope="module")
def trained(tool: Cli) -> Run:
    return run(tool, "train", "train")


def test_loss_falls_and_held_out_psnr_rises(trained: Run) -> None:
    result = trained.result
    quarter = len(result["loss"]) // 4
    first, last = statistics.mean(result["loss"][:quarter]), statistics.mean(result["loss"][-quarter:])
    print(f"loss {first:.5f} -> {last:.5f}; held-out PSNR {result['psnr_db'][0]:.2f} -> {result['psnr_db'][-1]:.2f} dB")
    assert last < first
    assert result["psnr_db"][-1] > result["psnr_db"][0]


def test_infer_takes_the_run_as_weights(tool: Cli, trained: Run) -> None:
    weights = f"denoiser.weights={trained.paths.run_id}"
    learned = run(tool, "infer", "train", weights)
    untrained = run(tool, "infer", "train")
    print(f"learned {learned.psnr_db[-1]:.2f} dB, untrained {untrained.psnr_db[-1]:.2f} dB")
    assert learned.psnr_db[-1] > untrained.psnr_db[-1]
    assert learned.result["step_size"] == pytest.approx(trained.result["step_size"])
