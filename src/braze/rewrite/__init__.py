"""Graph to graph: cleans up before lowering. The pass list is `braze.rewrite.passes`."""

from braze.rewrite.passes import choose_kernels, rewrite, rewrite_joint

__all__ = ["choose_kernels", "rewrite", "rewrite_joint"]
