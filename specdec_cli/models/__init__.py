"""Model architectures, one per file, written once against the Ops protocol."""
