"""Reports on runs: differences, tables, curves, and a self-contained HTML page."""
