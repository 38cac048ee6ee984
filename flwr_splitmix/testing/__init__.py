"""The laws of split learning as checks for any strategy, mixer or client."""
