"""Measures the quality of a judge: labelled turns, attacks, and the report of `clawctl calibrate`. No stage uses it."""
