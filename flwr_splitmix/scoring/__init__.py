"""Scores of classified texts and generated answers."""
