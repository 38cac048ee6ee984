"""What runs say side by side: what differs between them, tables, curves, and a page of its own."""
