"""Which definitions one kernel computes."""
