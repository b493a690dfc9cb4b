"""The layers, each a forward and a backward pass written by hand."""
