"""Pages on results: measurements are stored in small files, from which pages are generated."""
