"""The broker: frames in, handlers, frames out."""
