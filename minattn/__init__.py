"""minattn: watch self-attention write its training objective into W_qk."""
__version__ = "0.1.0"
