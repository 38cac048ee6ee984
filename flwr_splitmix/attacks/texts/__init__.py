"""Attacks on what crosses the cuts of a language model, one file per attack."""
