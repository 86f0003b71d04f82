"""The books of KV memory: which block belongs to whom. Knows blocks and token ids, but no sequences."""
