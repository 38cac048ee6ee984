"""How fast, how large, how many: programs that print a table and write JSON."""
