"""The steps of the demo, one a file, in the order of the pipeline."""
