"""The papers' tables and figures, one file a paper."""
