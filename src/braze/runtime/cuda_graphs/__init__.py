"""CUDA graphs: what is captured in one, when, and in which memory."""
