"""Graph passes: graph to graph, before lowering. `braze.rewrite.passes` lists them in order."""

from braze.rewrite.passes import choose_kernels, rewrite, rewrite_joint

__all__ = ["choose_kernels", "rewrite", "rewrite_joint"]
