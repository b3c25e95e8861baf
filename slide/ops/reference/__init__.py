"""The references: operations in torch, on the device of their tensors.

Each is the readable definition of the operation of its name in `slide.ops`, which documents it.
Tests compare the two, and other devices than the CPU compute with it (`slide.ops.table`).

The functions neither copy to the host nor wait for the device: all sizes follow from the shapes of
the arguments. Where the number of results depends on the data, there is room for the most that
there may be, and a mark or a count tells which results are real.
"""
