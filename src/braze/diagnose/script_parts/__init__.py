"""Python that scripts of `BRAZE_DEBUG` hold as text: none of it needs Braze."""
