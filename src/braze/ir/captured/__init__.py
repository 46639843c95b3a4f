"""What capture found in a frame: guards, sources, the request and its answer."""
