"""Compiled graphs as nodes of autograd."""
