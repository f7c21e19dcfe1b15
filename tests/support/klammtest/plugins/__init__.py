"""Plugins that tests load by `plugins.modules`."""
