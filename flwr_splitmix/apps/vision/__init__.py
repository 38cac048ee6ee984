"""From a run configuration to split learning of a vision model."""
