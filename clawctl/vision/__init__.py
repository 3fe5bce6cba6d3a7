"""Images in a vision-language model: how a prompt holds them (`reader`, no torch) and how a model computes them (`tower`)."""
