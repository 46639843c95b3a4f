"""Graph passes: graph to graph, before lowering. `braze.rewrite.passes` lists them in order."""

from braze.rewrite.passes import choose_kernels, rewrite, rewrite_joint
from braze.rewrite.reroll_blocks import reroll_blocks, rerolls

__all__ = ["choose_kernels", "reroll_blocks", "rerolls", "rewrite", "rewrite_joint"]
