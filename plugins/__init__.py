"""The plugins that ship with Klamm; each registers through `klamm.core.hookspecs` like anyone's."""
