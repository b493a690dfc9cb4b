"""What the sims are made of, a folder each.

`training.py` trains and measures one setting (`scoring.py` and `dissection.py` measure without),
`claims.py` judges, `figures.py` and `film.py` draw, `report.py` prints and writes tables.
"""
