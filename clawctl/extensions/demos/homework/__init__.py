"""The world of the demo: homework, simulated people who ask about it, and their satisfaction with the replies."""
