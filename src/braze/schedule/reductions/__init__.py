"""How reductions are divided among processors."""
