"""The vision app: split learning of a vision model, by a run configuration."""
