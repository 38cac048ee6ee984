"""Attacks on images: one file per attack, and the parts that they share."""
