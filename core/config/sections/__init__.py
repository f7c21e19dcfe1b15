"""The sections of the configuration file, a model each."""
