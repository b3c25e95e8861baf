"""The references: operations in torch, on the device of their tensors.

A file has the name of the file of kernels that it mirrors, and a function the name of its kernel.
So each function here is the readable definition of a kernel, and tests compare the two. Other
devices than the CPU compute with these functions (`slide.ops.table`).

The functions neither copy to the host nor wait for the device: all sizes follow from the shapes of
the arguments. Where the number of results depends on the data, there is room for the most that
there may be, and a mark or a count tells which results are real.
"""
