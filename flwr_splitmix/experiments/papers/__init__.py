"""The papers' tables and figures, in modules by paper and topic."""
