"""Where values live, and for how long."""
