"""The data each stage hands to the next: flat, frozen nodes that print, parse and verify."""
