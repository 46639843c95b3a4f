"""Shapes, strides and dtypes of the results of operators."""
