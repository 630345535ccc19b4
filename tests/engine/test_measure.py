"""The storage tracker counts what is alive, and the meter splits a step."""

from __future__ import annotations

from pathlib import Path

import torch
from deepinv.utils import TensorList
from hypothesis import given
from hypothesis import strategies as st

from dptrain.engine.measure import ALLOCATION_BYTES, Meter, StorageTracker, resident_peak_bytes

CPU = torch.device("cpu")
BLOCK = ALLOCATION_BYTES // 4
"""float32 values in one allocation."""


def test_the_peak_is_what_was_alive_at_once() -> None:
    tracker = StorageTracker()
    with tracker:
        a = torch.zeros(BLOCK)
        b = a + 1
        del a
        c = b + 1
        del b, c
    assert tracker.peak_bytes == 2 * ALLOCATION_BYTES
    assert tracker.current_bytes == 0


@given(st.lists(st.integers(1, 5 * BLOCK), min_size=1, max_size=6))
def test_sizes_are_rounded_up_as_the_allocator_does(sizes: list[int]) -> None:
    tracker = StorageTracker()
    with tracker:
        kept = [torch.zeros(size) for size in sizes]
    assert tracker.peak_bytes == sum(-(-t.numel() * 4 // ALLOCATION_BYTES) * ALLOCATION_BYTES for t in kept)


def test_views_and_in_place_operations_cost_nothing() -> None:
    tracker = StorageTracker()
    with tracker:
        a = torch.zeros(4, BLOCK)
        a[1:3].add_(1)
        a.t().reshape(-1)[0] = 1
        view = a[:2]
    assert view.untyped_storage().nbytes() == 4 * ALLOCATION_BYTES
    # reshape of a transposed matrix copies; the copy died.
    assert tracker.current_bytes == 4 * ALLOCATION_BYTES


def test_the_backward_pass_is_seen() -> None:
    forward, both = StorageTracker(), StorageTracker()
    layer = torch.nn.Linear(256, 256)
    for tracker, backward in ((forward, False), (both, True)):
        tracker.watch(layer)
        with tracker:
            loss = layer(torch.ones(8, 256)).square().mean()
            if backward:
                loss.backward()
    assert forward.peak_bytes < 2 * 256 * 256 * 4 <= both.peak_bytes, "weights and their gradient"


def test_what_existed_before_is_watched_once() -> None:
    meter = Meter(CPU, track=True)
    layer = torch.nn.Linear(BLOCK, 1, bias=False)
    with meter.tracking(layer, layer, [layer.weight]):
        pass
    assert meter.peak_memory_bytes == ALLOCATION_BYTES


def test_metrics_are_not_part_of_the_account() -> None:
    meter = Meter(CPU, track=True)
    with meter.tracking():
        with meter.paused():
            torch.zeros(100 * BLOCK).sum()
        torch.zeros(BLOCK)
    assert meter.peak_memory_bytes == ALLOCATION_BYTES


def test_without_a_tracker_the_process_peak_stands_in() -> None:
    assert Meter(CPU, track=False).peak_memory_bytes > 50 * 2**20


def test_sections_add_up_and_the_first_step_does_not_count() -> None:
    meter = Meter(CPU, track=False)
    for total in (9.0, 1.0, 3.0, 2.0):
        with meter.section("denoise"):
            pass
        with meter.section("denoise"):
            pass
        meter.close_step(total, ("gradient", "denoise"))
    medians = meter.medians()
    assert set(medians) == {"gradient", "denoise", "other"}
    assert medians["gradient"] == 0 and 0 < medians["denoise"] < 1
    assert 1.9 < medians["other"] <= 2.0


def test_the_resident_peak_rises_and_stays() -> None:
    before = resident_peak_bytes()
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS:"))
    # What this process has reached before is taken again, and 64 MiB on top.
    block = torch.ones(before - int(line.split()[1]) * 1024 + 2**26, dtype=torch.uint8)
    after = resident_peak_bytes()
    del block
    # The kernel counts in batches: a hundred kilobytes more or less.
    assert before + 2**25 < after < resident_peak_bytes() + 2**20


def test_measurements_are_watched_in_any_nesting() -> None:
    one, two, three = (torch.zeros(BLOCK) for _ in range(3))
    meter = Meter(CPU, track=True)
    with meter.tracking(TensorList([one, two]), {"more": [three, TensorList([one])]}):
        pass
    assert meter.peak_memory_bytes == 3 * ALLOCATION_BYTES
