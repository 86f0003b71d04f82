"""The decoder, written once over the operators of a backend."""
