"""Interpreted frames: their instructions, their control flow, and generators."""
