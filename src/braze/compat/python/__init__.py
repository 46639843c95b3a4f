"""What Braze uses of CPython's internals."""
