"""Captures become turns: conversations are put together, and each turn gets its parent and its next state."""
