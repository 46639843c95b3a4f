"""What Braze uses of NumPy, which may not be installed."""
