"""Graph passes: graph to graph, before lowering. `braze.rewrite.passes` lists them in order."""

from braze.rewrite.constants.freeze_parameters import Freezer
from braze.rewrite.constants.hoist_constants import hoist_constants
from braze.rewrite.passes import choose_kernels, rewrite, rewrite_joint
from braze.rewrite.reroll_blocks import reroll_blocks, rerolls

__all__ = [
    "Freezer",
    "choose_kernels",
    "hoist_constants",
    "reroll_blocks",
    "rerolls",
    "rewrite",
    "rewrite_joint",
]
