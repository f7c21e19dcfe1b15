"""The configuration of a running broker: the reloaded file, overridden by the settings that the cluster stores
(KIP-226).
"""
