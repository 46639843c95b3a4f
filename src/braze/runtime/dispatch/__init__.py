"""From a call to its compiled entry, or to eager."""
