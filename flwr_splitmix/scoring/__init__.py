"""Losses and scores: classes and multi-label examples, classified texts, generated answers."""
