"""Mixing by a third party: the process of its mixer, which is not the server."""
