"""The link over a mixer that a third party runs: nodes dial it, and so does the ServerApp."""
