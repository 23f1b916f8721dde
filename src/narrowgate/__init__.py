"""narrowgate: mixed-precision training for PyTorch, with proof."""

__version__ = "0.1.0"
