"""Mixing by a third party: the mixer's process, and the requests of a strategy to it."""
