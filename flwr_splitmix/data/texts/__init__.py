"""Texts, read from several sources, divided among clients, tokenised and batched."""
