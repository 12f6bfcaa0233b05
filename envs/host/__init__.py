"""Environments that processes of the host step: PettingZoo's."""
