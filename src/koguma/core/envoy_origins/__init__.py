"""Envoy origins: who set a field of a proxy's Envoy. Start with `origins`.

Nothing is carried through the compile for this: `replay` compiles one resource again, each time without one
part of what was written, and sees which fields differ. So it holds for every policy, also of other packages,
and for whatever a policy does to Envoy's data. `paths` names fields as people write them.
"""
