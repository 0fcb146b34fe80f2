"""Pictures of records, for `plot` and `report`: one module a picture, which turns records into panels.

`panels` says what a panel is, `text` draws panels as text, `figure` lays them out, `axes` draws them with matplotlib.
"""
