"""plan and dry runs: the page, the JSON, and the script that would be submitted."""

from __future__ import annotations

import json
import re

import pytest

from dptrain.cli import planning
from dptrain.plan.rows import Row
from tests.cli.cli import TINY, Cli


def test_page_names_choices_overrides_and_script(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    done = cli("plan", spec, "--cluster", "generic-slurm", "--set", "algorithm.iterations=3")
    assert done.code == 0, done.err
    for words in (
        "3 steps",
        "memory of a rank",
        "a card's memory is not known",
        "tiling.patch",
        "algorithm.iterations",
        "--set",
        "--cluster names it",
        "#SBATCH",
        "srun",
    ):
        assert words in done.out
    assert "\x1b" not in done.out


def test_json_is_the_contract(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    value = json.loads(cli("plan", spec, "--json").out)
    wanted = [
        "fits",
        "reasons",
        "layout",
        "world_size",
        "tiles",
        "tiles_per_rank_max",
        "tiles_per_rank_mean",
        "idle_ranks",
    ]
    wanted += ["work_multiplier", "halo_needed", "memory", "bytes_per_step", "max_batch_size", "checkpoint", "patch"]
    wanted += ["step_time_s", "gpu_hours", "sbatch", "choices", "cluster", "cluster_reason"]
    assert set(wanted) <= set(value)
    assert value["world_size"] == 2 and value["sbatch"] is None
    memory = value["memory"]
    assert memory["peak_gib"] == memory["forward_gib"] > 0 and memory["backward_gib"] is None
    assert sum(memory["terms"].values()) == pytest.approx(memory["peak_gib"])


def test_a_refusal_prints_the_json_too(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    done = cli("plan", spec, "--json", "--task", "train")
    assert done.code == 3
    value = json.loads(done.out)
    assert value["fits"] is False and any("train" in reason for reason in value["reasons"])
    assert "train" in done.err


def test_dry_run_writes_the_script_that_plan_shows(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    shown = json.loads(cli("plan", spec, "--cluster", "generic-slurm", "--json").out)["sbatch"]
    done = cli("infer", spec, "--cluster", "generic-slurm", "--dry-run")
    assert done.code == 0, done.err
    (folder,) = (cli.folder / "runs").iterdir()
    assert (folder / "submission.sh").read_text() == shown
    assert shown.strip() in done.out and str(folder) in done.out
    status = json.loads(cli("status", "last", "--json").out)[0]
    assert (status["state"], status["reason"]) == ("never-submitted", "dry run")


def test_flags_that_replace_values_are_listed(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY + "cluster: local\n")
    assert cli("infer", spec, "--dry-run", "--name", "other", "--cluster", "generic-slurm").code == 0
    (folder,) = (cli.folder / "runs").iterdir()
    assert folder.name.startswith("other-")
    overrides = {o["key"]: o["origin"] for o in json.loads((folder / "plan.json").read_text())["overrides"]}
    assert overrides == {"name": "--name", "cluster": "--cluster"}


def test_prepare_says_what_is_needed(cli: Cli) -> None:
    done = cli("prepare", cli.write("tiny.yaml", TINY))
    assert done.code == 0 and "nothing to fetch" in done.out


def test_rows_over_ranks_and_sizes(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    change = ("--set", "resources.layout=sharded", "--set", "tiling={patch: fit, halo: 4}")
    done = cli("plan", spec, *change, "--gpus", "4,1,2", "--sizes", "64,4", "--plot", "e.png", "--json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert value["world_size"] == 2 and value["fits"] is None
    rows = value["rows"]
    assert [(r["image_size"][0], r["gpus"]) for r in rows] == [(e, n) for e in (4, 64) for n in (1, 2, 4)]
    # A halo of 4 is not smaller than an image of 4.
    assert all(r["fits"] is False and "tiling.halo is 4" in r["reasons"][0] for r in rows[:3])
    assert [(r["patch"], r["idle_ranks"]) for r in rows[3:]] == [(64, 0), (32, 0), (32, 0)]
    assert [r["gpus"] for r in rows if r["knee"]] == []
    assert (cli.folder / "e.png").is_file()


def test_the_table_for_people(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    done = cli("plan", spec, "--gpus", "1,2,64", "--set", "tiling={patch: 8, halo: 4}")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("PIXELS"))
    assert [line.split()[3] for line in lines[header + 1 : header + 4]] == ["1", "2", "64"]
    # Whether it fits and how long messages take: the profile says neither. The peak is forecast.
    assert lines[header + 2].count("not known") == 2 and "knee" in lines[header + 2]
    assert any(line.startswith("knee: beyond it a rank that is added") for line in lines)


def test_tables_that_make_no_sense(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    cases = {
        ("--gpus", "1,x"): "--gpus 1,2,4",
        ("--gpus", ""): "--gpus is ''",
        ("--sizes", ""): "--sizes is ''",
        ("--sizes", "64", "--gpus", " , "): "--gpus is",
        ("--plot", "e.png"): "--gpus",
        ("--gpus", "1,2", "--plot", "e.bmpx"): "write: e.png",
        ("--gpus", "1,2", "--plot", "no/e.png"): "cannot be written",
        ("--gpus", "1,2", "--plot", "."): "no picture of this kind",
    }
    for words, said in cases.items():
        done = cli("plan", spec, *words)
        assert done.code == 2 and said in done.err and not done.out, words
        assert "measuring" not in done.err, "before any work"
    assert not list(cli.folder.glob("e.*")), "looking whether a picture can be written leaves none"


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
@pytest.mark.parametrize("axes", [2, 3])
def test_a_narrow_terminal_cuts_nothing(
    width: int, axes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {
        "PIXELS": " x ".join(["16384"] * axes), "GPUS": "1024", "FITS": "not known", "PEAK GiB": "123.45", "EFF.": "0.98", "": "knee",
    }  # fmt: skip
    cells = [whole.get(name, "not known") for name in planning.HEADER]
    monkeypatch.setattr(planning, "_cells", lambda row: cells)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    planning.print_rows([Row(image_size=(16384,) * axes, gpus=1024, fits=None, peak_gib=123.45, communication_s=1.0)])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    header, line = (text.rstrip() for text in out.splitlines()[1:3])
    shown = re.split(r" {2,}", header)
    assert re.split(r" {2,}", line) == [cells[planning.HEADER.index(name)] for name in [*shown, ""]]
    if len(shown) > len(whole) - 1:
        assert len(line) <= width, "columns that may go are left out before a line is too long"
    assert set(whole) - {""} <= set(shown) and (width < 200 or len(shown) > 5)
