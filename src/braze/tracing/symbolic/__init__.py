"""Sizes and numbers that are symbols."""
