"""Labelled images, read from several sources into one packed array."""
