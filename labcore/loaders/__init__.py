"""From a model's name or file to a `Checkpoint`: configuration, tensors, tokenizer."""
