"""`gui`: the agent uses a web page in Chromium."""
