"""Calls: which are interpreted, which go into the graph, and which break it."""
