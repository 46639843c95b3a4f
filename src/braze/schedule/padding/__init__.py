"""Whether a program can run at larger sizes than it was called with."""
