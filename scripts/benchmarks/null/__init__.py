"""The two other processes of the case `null-upstream`: a server that answers at once, and those who ask."""
