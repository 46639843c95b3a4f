"""What needs a CUDA device: `make test-gpu`."""
