"""What a capture keeps of the program's objects: guards on reads, and writes as side effects."""
