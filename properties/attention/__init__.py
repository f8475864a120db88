"""Properties of attention targets: tensors that are stored, read and copied through block tables.

Life of a case: `strategies` draws a `cases.ReadCase` (or StoreCase, CopyCase) that the target's
capabilities allow; `contents` makes the tokens; `scene` lays them out in a poisoned pool (`buffers`,
`poison`); `judges` run the target on it, compare, run a variation that must not matter (`variations`), and
explain what is wrong (`decoys`). Cases and capabilities are plain data and need no torch; everything that
touches a tensor does.
"""
