"""From a run configuration to model, data, clients and strategy; one folder an app."""
