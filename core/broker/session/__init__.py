"""The broker's session with the coordination: how long it is certain to be alive, and whether requests may be
acknowledged.
"""
