"""Where models come from: aliases, sources, downloads, target and draft pairing."""
