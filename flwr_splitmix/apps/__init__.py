"""Apps: from a run configuration to model, data, clients and strategy; one folder per app."""
