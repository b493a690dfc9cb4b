"""What the sims are made of, a folder each.

`training.py` trains and measures one setting, `claims.py` judges, `figures.py` draws, `report.py`
prints and writes tables.
"""
