"""The laws of split learning, stated once, for any strategy, mixer or client."""
