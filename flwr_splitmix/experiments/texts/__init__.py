"""Cells of texts: corpora, models, recipes, and how they run."""
