"""Operators of torch's that take functions, as Python for the interpreter."""
