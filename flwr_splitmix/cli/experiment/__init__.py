"""The commands `splitmix experiment`: the papers' tables."""
