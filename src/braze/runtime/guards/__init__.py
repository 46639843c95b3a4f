"""Guards: compiled to Python and C++, remembered as snapshots, explained."""
