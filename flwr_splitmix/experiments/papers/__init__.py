"""The papers' tables and figures, each paper's in modules of its own."""
