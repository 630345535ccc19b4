"""Physics and data of a spec, as deepinv objects: built-in problems and user code behind the same three functions."""

from dptrain.engine.problems.data import ImageSet, Role, Sample, build_data
from dptrain.engine.problems.dead_leaves import dead_leaves
from dptrain.engine.problems.norm import operator_norm_sq
from dptrain.engine.problems.parts import RankPhysics, WholePhysics
from dptrain.engine.problems.physics import build_physics

__all__ = [
    "ImageSet",
    "RankPhysics",
    "Role",
    "Sample",
    "WholePhysics",
    "build_data",
    "build_physics",
    "dead_leaves",
    "operator_norm_sq",
]
