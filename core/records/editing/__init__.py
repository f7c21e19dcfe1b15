"""Changes to batches that are encoded already: fewer records, another codec, one header more."""
