"""Publishing: renames a staged directory to a load; defines the operations that a lake's file system must offer."""
