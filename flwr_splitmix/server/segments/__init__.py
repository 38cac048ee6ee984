"""The segments that the server trains: the upper segment, and the trunk of the U shape."""
