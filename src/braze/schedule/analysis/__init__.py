"""What scheduling asks about a loop program."""
