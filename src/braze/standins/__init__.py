"""Tracing: fake tensors, and the dispatch mode that records the operators applied to them."""

from braze.standins.errors import DataDependent, UnknownTensor, Untraceable, reads_data
from braze.standins.finish import FinishedTrace
from braze.standins.tracer import Tracer

__all__ = ["DataDependent", "FinishedTrace", "Tracer", "UnknownTensor", "Untraceable", "reads_data"]
