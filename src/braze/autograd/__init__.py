"""From a graph whose inputs need gradients to a forward graph and a backward graph."""

from braze.autograd.again import forward_again, keep_for_again, read_inputs
from braze.autograd.backward import NotSaved, backward_graph, with_zeros
from braze.autograd.joint import NotDifferentiable, trace_joint
from braze.autograd.partition import partition
from braze.autograd.region_gradient import differentiate_region
from braze.autograd.stages import divide_backward
from braze.autograd.transformed import GraphTransforms

__all__ = [
    "GraphTransforms",
    "NotDifferentiable",
    "NotSaved",
    "backward_graph",
    "differentiate_region",
    "divide_backward",
    "forward_again",
    "keep_for_again",
    "partition",
    "read_inputs",
    "trace_joint",
    "with_zeros",
]
