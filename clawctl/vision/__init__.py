"""Images in a vision-language model: in the prompt (`reader`, no torch) and in the model's computation (`tower`)."""
