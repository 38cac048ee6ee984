"""Scores of classified texts and of generated answers."""
