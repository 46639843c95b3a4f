"""How long what is compiled lives: as long as somebody holds it, and no longer."""
