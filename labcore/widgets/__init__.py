"""Controls and replays that notebooks show. A control needs a kernel; a replay carries its behaviour with it."""
