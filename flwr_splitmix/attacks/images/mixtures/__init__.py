"""The members of a mixture: which patches are whose, and losses under any numbering."""
