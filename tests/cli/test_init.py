"""init: what it writes and what it refuses."""

from __future__ import annotations

import pytest

from dptrain.spec.load import load_spec
from tests.cli.cli import Cli


def test_every_template_loads_under_its_new_name(cli: Cli) -> None:
    listing = cli("init", "--list").out
    assert "generic-slurm" in listing
    names = [line.split()[0] for line in listing.split("cluster profiles:")[0].splitlines()[1:]]
    assert {"demo", "train", "sweep"} <= set(names)
    for template in names:
        done = cli("init", f"my-{template}", "--template", template)
        assert done.code == 0, done.err
        assert load_spec(cli.folder / f"my-{template}.yaml").spec.name == f"my-{template}"


def test_the_listing_ends_no_line_in_mid_sentence(cli: Cli) -> None:
    lines = [line for line in cli("init", "--list").out.splitlines() if line.startswith("  ")]
    assert len(lines) > 5 and all(line.endswith(".") for line in lines), lines


def test_comments_stay(cli: Cli) -> None:
    cli("init", "mine.yaml")
    assert "#" in (cli.folder / "mine.yaml").read_text().splitlines()[0]


def test_profile_becomes_the_users_own(cli: Cli) -> None:
    assert cli("init", "mine", "--cluster-profile", "generic-slurm").code == 0
    assert (cli.folder / "config/dptrain/clusters/generic-slurm.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["taken"], "exists already"),
        (["new", "--template", "dmeo"], "demo"),
        (["new", "--cluster-profile", "generic-slurn"], "generic-slurm"),
        (["../new"], "not a name"),
    ],
)
def test_refusals_write_nothing(cli: Cli, words: list[str], says: str) -> None:
    cli.write("taken.yaml", "mine")
    done = cli("init", *words)
    assert done.code == 2 and says in done.err
    assert [p.name for p in cli.folder.iterdir()] == ["taken.yaml"]
    assert (cli.folder / "taken.yaml").read_text() == "mine"
