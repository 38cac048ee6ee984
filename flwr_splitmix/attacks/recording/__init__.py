"""Recordings of what a server sees of a run, and the part that each adversary has."""
