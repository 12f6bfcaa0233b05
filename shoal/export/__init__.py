"""Policies that play without JAX, or without Shoal."""
