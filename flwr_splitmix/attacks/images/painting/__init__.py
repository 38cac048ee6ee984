"""Patches that were not received, painted by Gaussians of public images."""
