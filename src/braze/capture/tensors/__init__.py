"""What capture answers for tensors: attributes, items, sizes, numbers read from data."""
