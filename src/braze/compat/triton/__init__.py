"""Triton's kernels as programs make them: what they are wrapped in, and what they write to.

Triton is never imported here: a kernel that the program launches has brought it along.
"""
