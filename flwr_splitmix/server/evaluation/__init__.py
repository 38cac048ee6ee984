"""Measuring a model: at the server, or with the clients over the link."""
