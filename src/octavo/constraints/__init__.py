"""What rules tokens out, row by row: grammars, allowed ids, bad words. See `constraint.py` for the seam."""
