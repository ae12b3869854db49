"""The contestants of benchmarks/peers.py: one file a kind, one seam (`base.Contestant`); rows and tables beside."""
