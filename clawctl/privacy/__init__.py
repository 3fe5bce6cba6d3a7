"""What may be captured and for how long: redaction, forgetting, and what was learned from a person."""
