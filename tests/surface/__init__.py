"""Everything that a program can ask, generated from `dir()`, put to Braze and to eager."""
