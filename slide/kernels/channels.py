"""Some channels of images taken out and put back.

P counts pixels, C channels, A those of them that are used: ``places`` ``(A,)`` int64, distinct.
"""

from slide.kernels.compile import parallel, prange


@parallel
def take_pixels(pixels, places, out):
    """The used channels ``out`` ``(P, A)`` of ``pixels`` ``(P, C)``."""
    for p in prange(len(out)):
        for a in range(len(places)):
            out[p, a] = pixels[p, places[a]]


@parallel
def put_pixels(values, places, out):
    """The inverse of `take_pixels`; other channels of ``out`` ``(P, C)`` become zero."""
    for p in prange(len(out)):
        for c in range(out.shape[1]):
            out[p, c] = 0
        for a in range(len(places)):
            out[p, places[a]] = values[p, a]


@parallel
def put_planes(values, places, out):
    """Pixels ``values`` ``(B, P, A)`` as planes of ``out`` ``(B, C, P)``; others become zero."""
    for b in prange(len(out)):
        planes, pixels = out[b], values[b]
        planes[:] = 0
        for a in range(len(places)):
            plane = planes[places[a]]
            for p in range(len(plane)):
                plane[p] = pixels[p, a]
