"""What stands between a plug-in (`wirelake.plugin`) and the rest: its codec, session and speech."""
