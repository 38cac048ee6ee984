"""Recordings of what a server sees of a run, and what each adversary has of it."""
