"""What tests share: twins of kernels, small data sets, runs of the main job."""
