"""Publishing: how a staged directory becomes a load, and what a lake's file system must be able to do."""
