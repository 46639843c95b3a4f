"""Integer expressions over sizes and loop indices."""
