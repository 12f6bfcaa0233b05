"""What the appendix of a paper takes for granted: returns, distributions, replay, normalisation."""
