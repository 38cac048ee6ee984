"""Checks of an app before it runs, of our kinds and of users' own, and what they report."""
