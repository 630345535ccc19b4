"""More ranks than a plan can work out are refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import PlanRefused
from dptrain.geometry import dealing
from dptrain.plan.patches import MOST_RANKS
from dptrain.plan.plan import forecast_all, make_plan
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY


@pytest.mark.parametrize("patch", ["fit", 16])
@pytest.mark.parametrize("layout", ["sharded", "replicated"])
def test_too_many_ranks(patch: str | int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "deal_tiles", None)
    for gpus in (MOST_RANKS + 1, 9_999_999):
        changes = (f"resources.gpus={gpus}", f"resources.layout={layout}", f"tiling.patch={patch}")
        loaded = parse_spec(TINY, "tiny.yaml", Path.cwd(), changes)
        profile = ClusterProfile(name="c", gpus_per_node=4, gpu_memory_gib=1)
        with pytest.raises(
            PlanRefused, match=rf"resources.gpus is {gpus}: no more than {MOST_RANKS} ranks are planned"
        ):
            make_plan(loaded, "train", profile)
        forecast_all([loaded.spec], "train", profile)
