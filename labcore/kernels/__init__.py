"""The operators of a decoder, once per backend, all behind one protocol (`api.Backend`)."""
