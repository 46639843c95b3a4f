"""The instructions of CPython, on abstract values."""
