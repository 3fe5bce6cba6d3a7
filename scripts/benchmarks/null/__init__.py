"""The other processes of the case `null-upstream`: an upstream that answers at once, a relay, and the load."""
