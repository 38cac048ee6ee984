"""The matrix of texts: methods of the U shape as rows, attacks on what their server has."""
