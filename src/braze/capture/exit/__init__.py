"""The end of a captured frame: side effects and results, reconstructed behind the graph."""
