"""The little world of the demo: homework, the people who bring it, and how pleased they are with what they get."""
