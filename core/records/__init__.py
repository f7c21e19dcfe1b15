"""Record batches (magic 2): headers, encoding, decoding, Arrow columns."""
