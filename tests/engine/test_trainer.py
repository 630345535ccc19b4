"""The order of the data, the learning rate, and what a batch is."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dptrain.engine.build import build
from dptrain.engine.problems import build_data
from dptrain.engine.trainer import COSINE_FLOOR, data_order, learning_rate, make_batch
from dptrain.spec.schema import Train
from tests.engine.helpers import SMALL, context, single


@given(st.integers(1, 9), st.integers(0, 99), st.integers(0, 30))
def test_the_data_order_is_a_function_of_the_position(images: int, seed: int, start: int) -> None:
    whole = list(itertools.islice(data_order(images, seed, 0), start + 20))
    assert list(itertools.islice(data_order(images, seed, start), 20)) == whole[start:]
    for epoch in range(len(whole) // images):
        assert sorted(whole[epoch * images : (epoch + 1) * images]) == list(range(images))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(itertools.islice(data_order(50, seed, start), 50)) for seed, start in ((0, 0), (0, 50), (1, 0))]
    assert len(set(orders)) == 3


def test_learning_rates() -> None:
    constant = Train(steps=5, learning_rate=0.1)
    assert [learning_rate(constant, s) for s in range(1, 6)] == [0.1] * 5
    cosine = Train(steps=5, learning_rate=0.1, schedule="cosine")
    rates = [learning_rate(cosine, s) for s in range(1, 6)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(0.1) and rates[-1] == pytest.approx(0.1 * COSINE_FLOOR)
    assert learning_rate(Train(steps=1, learning_rate=0.1, schedule="cosine"), 1) == pytest.approx(0.1)


def test_a_batch_keeps_images_and_operators_apart() -> None:
    built = build(SMALL, context(single()), max_batch_size=1, checkpoint="auto")
    images = build_data(SMALL, built.physics, role="train")
    batch = make_batch([images[0], images[1]], built.algorithm, blind=True)
    assert batch.truth.shape == (2, 3, 40, 36) and len(batch.measured) == 4
    for i in range(2):
        truth = images[i].truth
        assert truth is not None and torch.equal(batch.truth[i : i + 1], truth)
        for whole, alone in zip(batch.measured, images[i].measurements, strict=True):
            assert torch.equal(whole[i : i + 1], alone)
    assert batch.sigma is not None and batch.sigma.shape == (2,)
    assert make_batch([images[0]], built.algorithm, blind=False).sigma is None
