"""Users of other systems: their recipes are converted, and their keys and options are translated or explained."""
