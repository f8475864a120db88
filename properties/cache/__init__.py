"""Properties of whole caches: bookkeeping and tensors together.

A trace of the blocks level is applied to a target that also stores and reads KV. The referee plays the model: the KV of a token
follows from the whole run behind it (`payload`), so that equal runs have equal KV and different ones do not. It writes through
the target, knows what every slot must hold (`mirror`), poisons what nobody owns, and compares what the target reads with dense
attention over the sequence's own tokens (`reads`). Geometry, operations and generation need no torch.
"""
