"""What the book itself needs: set-up, verification, notebook tools."""
