"""One training, from a plan to its last chunk."""
