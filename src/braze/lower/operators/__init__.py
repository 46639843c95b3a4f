"""Lowering rules, one file a family of operators."""
