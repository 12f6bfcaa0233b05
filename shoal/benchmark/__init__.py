"""Algorithms times tasks times seeds."""
