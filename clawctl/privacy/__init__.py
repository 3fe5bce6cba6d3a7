"""Decides what may be captured and for how long: redaction, retention, forgetting, and rollback of policies trained on forgotten
turns.
"""
