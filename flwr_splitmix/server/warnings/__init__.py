"""Warnings of a run: clients that differ, plans that mix nothing, weights that do not train."""
