"""What `python -m braze` does, a file a command; loaded when one is given."""
