"""Frames that go on behind a graph break."""
