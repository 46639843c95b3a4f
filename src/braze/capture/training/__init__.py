"""Gradients, optimizers, hooks and modules in captured frames."""
