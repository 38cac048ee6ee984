"""The commands `splitmix privacy`: what noise costs, before a run."""
