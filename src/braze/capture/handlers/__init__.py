"""Functions of Python's and PyTorch's that capture answers itself."""
