"""Makes `clawctl/demo_model`: corpus, tokenizer, training, report. See README.md in this folder."""
