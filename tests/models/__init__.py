"""Whole models written by others, compiled end to end."""
