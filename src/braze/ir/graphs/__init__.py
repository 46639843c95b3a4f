"""The functional ATen graph, and the pair of graphs of a training step."""
