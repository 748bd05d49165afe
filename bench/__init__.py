"""Measurements: what Koguma costs, each figure beside the bare library underneath, taken in the same run.

`python -m bench` runs every part, `python -m bench store api` some of them; `--json` prints one object.
`--quick` is a short round that shows that everything still runs; its figures mean nothing. How to read the
others is in `docs/performance.md`.
"""
