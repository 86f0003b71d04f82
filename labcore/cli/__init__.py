"""The commands of `labcore`: one file a command, dispatched by `main`."""
