"""Graph to graph: cleans up before lowering. The pass list is `braze.rewrite.passes`."""

from braze.rewrite.passes import rewrite, rewrite_joint

__all__ = ["rewrite", "rewrite_joint"]
