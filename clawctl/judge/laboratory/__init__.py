"""How good a judge is: labelled turns, attacks, and the report of `clawctl calibrate`. No stage needs it."""
