"""Texts: read from several sources, divided among clients, tokenised, in batches."""
