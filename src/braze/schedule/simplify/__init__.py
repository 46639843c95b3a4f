"""Rewrites of a loop program before it is fused."""
