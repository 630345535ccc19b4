"""What a resumed run may do differently, and what not, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.spec.changes import FREE, changed, fingerprint_after, longer, refusals
from dptrain.spec.load import load_spec, parse_spec
from dptrain.spec.schema import Spec
from dptrain.spec.sections import everything
from dptrain.spec.sweep import fingerprint

TEXT = """\
name: learn
resources: {gpus: 4, layout: sharded}
train: {steps: 10, batch_size: 4, images: 8}
"""


def spec(*overrides: str, text: str = TEXT) -> Spec:
    return parse_spec(text, "learn.yaml", Path.cwd(), overrides).spec


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("resources.gpus=2",),
        ("resources.layout=replicated",),
        ("tiling.max_batch_size=1", "tiling.checkpoint=always"),
        ("run.max_preempts=20", "run.signal_lead_s=200", "resources.time_min=60"),
        ("train.steps=11", "train.save_every_steps=1"),
        ("resources.replicas=2", "train.batch_size=2"),
        ("resources.replicas=4", "train.batch_size=1"),
    ],
)
def test_where_and_how_it_computes_is_free(changes: tuple[str, ...]) -> None:
    assert refusals(spec(), spec(*changes)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("algorithm.iterations=3", "algorithm.iterations: 10 -> 3: the result would be another one"),
        ("resources.precision=float64", 'resources.precision: "float32" -> "float64": the result'),
        ("run.seed=1", "run.seed: 0 -> 1: the result"),
        ("train.steps=9", "train.steps: 10 -> 9: only more steps"),
        ("train.learning_rate=1.0", "train.learning_rate"),
        ("train=null", "train.steps: 10 -> null"),
        ("tiling.patch=64", "tiling.patch: 128 -> 64"),
        ("problem.physics={name: deblur}", "problem.physics.name"),
        ("name=other", "name:"),
        ("cluster=here", "write --cluster NAME"),
        ("resources.replicas=2", "every step has 4 images (resources.replicas x train.batch_size), and must keep them; "
         "write: train.batch_size=2"),
        ("train.batch_size=8", "write: train.batch_size=4"),
    ],
)  # fmt: skip
def test_what_makes_another_result_is_refused_by_name(change: str, says: str) -> None:
    found = refusals(spec(), spec(change))
    assert found and says in "\n".join(found)


def test_replicas_that_do_not_divide_the_images_of_a_step() -> None:
    assert "a resources.replicas that divides 4" in "\n".join(
        refusals(spec(), spec("resources.gpus=6", "resources.replicas=3", "train.batch_size=2"))
    )


def test_a_schedule_that_was_followed_cannot_be_made_longer() -> None:
    text = TEXT.replace("steps: 10", "steps: 10, schedule: cosine")
    (found,) = refusals(spec(text=text), spec("train.steps=20", text=text))
    assert "the learning rate has followed the schedule cosine over 10 steps" in found


def test_every_free_key_exists() -> None:
    assert set(FREE) <= {f"{path}.{key}" if path else key for path, _, key in everything()}


def test_a_frozen_spec_is_not_changed_by_reading_it(tmp_path: Path) -> None:
    from dptrain.spec.load import dump_spec

    (tmp_path / "spec.yaml").write_text(dump_spec(spec()))
    assert changed(spec(), load_spec(tmp_path / "spec.yaml").spec) == {}


def test_more_steps_are_more_to_do() -> None:
    assert longer(spec(), spec("train.steps=20"), "train")
    assert not longer(spec(), spec("train.steps=20"), "infer") and not longer(spec(), spec("resources.gpus=2"), "train")


def test_a_sweep_knows_its_member_by_what_it_computed() -> None:
    old = spec()
    for change in ("tiling.max_batch_size=1", "tiling.checkpoint=always", "resources.time_min=60"):
        assert fingerprint_after("mine", old, spec(change), "train") == "mine"
    assert fingerprint_after("mine", old, spec("resources.gpus=2"), "train") == fingerprint(
        spec("resources.gpus=2"), "train"
    )
    assert fingerprint_after(None, old, spec("resources.gpus=2"), "train") is None
