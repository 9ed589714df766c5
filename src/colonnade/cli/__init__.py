"""The command line: thin, over what the other packages do."""
