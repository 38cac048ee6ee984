"""Attacks on images: one file for each, and the parts that they share."""
