"""Mixing by a third party: the mixer's process, and what a strategy asks of it."""
