"""Graph to graph: cleans up before lowering. The pass list is `braze.rewrite.passes`."""

from braze.rewrite.passes import rewrite

__all__ = ["rewrite"]
