"""NumPy's arrays and functions, computed with tensors."""
