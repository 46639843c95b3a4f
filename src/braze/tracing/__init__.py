"""Tracing: fake tensors, and the dispatch mode that records the operators applied to them."""

from braze.tracing.errors import DataDependent, UnknownTensor, Untraceable, reads_data
from braze.tracing.finalize import FinishedTrace
from braze.tracing.tracer import Tracer

__all__ = ["DataDependent", "FinishedTrace", "Tracer", "UnknownTensor", "Untraceable", "reads_data"]
