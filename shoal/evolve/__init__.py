"""Evolution on the run axis."""
