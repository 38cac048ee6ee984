"""The cost of uploads, as a server or a mixer can know it; `privacy` knows no uploads."""
