"""What the makers of the tiny models share: documents, tokenizer, network, training and export."""
