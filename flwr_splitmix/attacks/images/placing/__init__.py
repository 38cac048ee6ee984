"""The places of shuffled patches, found by several means."""
