"""Guesses at the next tokens, and the one step that verifies them all."""
