"""Scores of guesses against the truth, with floors and intervals: only scoring uses the truth."""
