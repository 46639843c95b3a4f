"""What Braze uses of PyTorch's internals."""
