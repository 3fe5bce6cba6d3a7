"""Malformed requests for the case `fuzz`."""
