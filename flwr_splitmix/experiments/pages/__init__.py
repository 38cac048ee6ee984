"""Pages on results: what runs measured is kept in small files, from which the pages are made."""
