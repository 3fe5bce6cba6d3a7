"""Makes `clawctl/extensions/demos/models/demo`: corpus, tokenizer, training, report. See README.md in this folder."""
