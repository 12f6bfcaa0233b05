"""Typed settings: what may be said on the command line, and how it is composed and checked."""
