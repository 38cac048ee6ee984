"""The matrix of texts: rows are U-shape methods, columns attacks on the server's view."""
