"""The exercises' checks, a module for each chapter that has any; `verdict` is what they share."""
