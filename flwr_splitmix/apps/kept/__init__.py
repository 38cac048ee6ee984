"""Uses of a run's kept files: exports, attacks, and a comparison of its data."""
