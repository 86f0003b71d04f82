"""What went wrong, and where: the first operator whose numbers are bad, the books of memory that do not balance."""
